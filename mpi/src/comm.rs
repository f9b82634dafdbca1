// SPDX-License-Identifier: MIT OR Apache-2.0
//! Communicators.
//!
//! A communicator is a group and two contexts of the runtime: one for the program's messages, one for the library's.
//! Ranks are translated here; the runtime knows the ranks of the job alone.

mod create;

pub(crate) use create::*;

use crate::attributes::{self, Attributes};
use crate::failure::{Failure, Outcome, fail};
use crate::ffi::{Comm, Group, Info, Out, OutText, Text};
use crate::group::{self, GroupObject};
use crate::handle::Table;
use crate::handler::Handler;
use crate::info::{self, Pairs};
use crate::store::AttachedBuffer;
use crate::topology::Topology;
use crate::{c, phase};
use onecopy_shm::sync::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// A communicator's two contexts.
pub(crate) struct Links {
    /// The program's messages.
    pub(crate) link: onecopy::Comm,
    /// The library's.
    pub(crate) own: onecopy::Comm,
}

/// A communicator.
pub(crate) struct CommObject {
    /// Set when its identity is known: at once, but for a duplicate that is being made.
    links: OnceLock<Links>,
    pub(crate) group: Arc<GroupObject>,
    pub(crate) rank: usize,
    handle: OnceLock<Comm>,
    handler: Mutex<Handler>,
    name: Mutex<Vec<u8>>,
    info: Mutex<Pairs>,
    pub(crate) attributes: Mutex<Attributes>,
    pub(crate) topology: Option<Topology>,
    pub(crate) buffer: Mutex<Option<AttachedBuffer>>,
    /// Collectives with a channel of their own; a communicator without goes by messages.
    collectives: OnceLock<onecopy::Comm>,
    /// Collectives that start before that place is agreed on.
    early: OnceLock<onecopy::Comm>,
    tag: AtomicU32,
    persistent: AtomicU32,
}

static COMMS: Table<Arc<CommObject>> = Table::new(5);

static WORLD: OnceLock<Arc<CommObject>> = OnceLock::new();
static SELF: OnceLock<Arc<CommObject>> = OnceLock::new();

/// The communicator of all ranks, during the job.
#[inline(always)]
pub(crate) fn world() -> Option<&'static Arc<CommObject>> {
    if phase::is_active() {
        WORLD.get()
    } else {
        None
    }
}

/// The communicator of this rank alone, during the job.
pub(crate) fn own() -> Option<&'static Arc<CommObject>> {
    if phase::is_active() { SELF.get() } else { None }
}

/// The predefined communicators are there from now on.
pub(crate) fn set_predefined(world: Arc<CommObject>, own: Arc<CommObject>) {
    let _ = WORLD.set(world);
    let _ = SELF.set(own);
}

/// What tells the messages of an agreement from those of collectives before it, in the library's context.
const AGREEMENT: u32 = 0;
const EARLY: u32 = 1;
const PERSISTENT: u32 = 2;

/// What a new communicator takes over from another one.
#[derive(Default)]
pub(crate) struct Heritage {
    pub(crate) handler: Option<Handler>,
    pub(crate) attributes: Attributes,
    pub(crate) info: Pairs,
    pub(crate) topology: Option<Topology>,
}

impl CommObject {
    fn new(group: Arc<GroupObject>, heritage: Heritage) -> Outcome<Arc<Self>> {
        let rank = group
            .me()
            .ok_or_else(|| fail(c::ERR_INTERN, "not a member of the group"))?;
        Ok(Arc::new(Self {
            links: OnceLock::new(),
            rank,
            group,
            handle: OnceLock::new(),
            handler: Mutex::new(heritage.handler.unwrap_or(Handler::Fatal)),
            name: Mutex::default(),
            info: Mutex::new(heritage.info),
            attributes: Mutex::new(heritage.attributes),
            topology: heritage.topology,
            buffer: Mutex::new(None),
            collectives: OnceLock::new(),
            early: OnceLock::new(),
            tag: AtomicU32::new(0),
            persistent: AtomicU32::new(0),
        }))
    }

    /// One of the predefined communicators.
    pub(crate) fn predefined(
        world: &onecopy::Comm,
        handle: Comm,
        group: Arc<GroupObject>,
        context: u32,
        name: &str,
    ) -> Arc<Self> {
        let object = Self::new(group, Heritage::default());
        let object = object.unwrap_or_else(|_| unreachable!("every rank is in these groups"));
        object.connect(world, context / 2);
        let _ = object.handle.set(handle);
        name.as_bytes().clone_into(&mut phase::lock(&object.name));
        object
    }

    /// Gives it its contexts.
    pub(crate) fn connect(&self, world: &onecopy::Comm, identity: u32) {
        let _ = self.links.set(Links {
            link: world.with_context(identity * 2),
            own: world.with_context(identity * 2 + 1),
        });
    }

    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.group.size()
    }

    #[inline(always)]
    pub(crate) fn links(&self) -> Outcome<&Links> {
        self.links.get().ok_or_else(not_complete)
    }

    /// The program's messages.
    #[inline(always)]
    pub(crate) fn link(&self) -> Outcome<&onecopy::Comm> {
        match self.links.get() {
            Some(links) => Ok(&links.link),
            None => Err(not_complete()),
        }
    }

    /// The rank in the job of a member.
    #[inline(always)]
    pub(crate) fn job_rank(&self, rank: usize) -> Outcome<usize> {
        self.group.rank(rank).ok_or_else(|| {
            fail(
                c::ERR_RANK,
                format!("rank {rank} is not in a communicator of {}", self.size()),
            )
        })
    }

    /// The rank of a member.
    #[inline(always)]
    pub(crate) fn rank_of(&self, job_rank: usize) -> i32 {
        self.group
            .place(job_rank)
            .map_or(c::UNDEFINED, |place| place as i32)
    }

    /// Where its collectives run.
    #[inline]
    pub(crate) fn collectives(&self) -> Outcome<&onecopy::Comm> {
        match self.collectives.get() {
            Some(collectives) => Ok(collectives),
            None => self.form_collectives(),
        }
    }

    /// Where a collective starts that must not wait for the other members. Only a duplicate that was made without
    /// waiting has not agreed yet. It goes by messages until its first blocking collective, which is the same one on
    /// all members.
    #[inline]
    pub(crate) fn collectives_at_once(&self) -> Outcome<&onecopy::Comm> {
        match self.collectives.get() {
            Some(collectives) => Ok(collectives),
            None if self.handle() == c::COMM_WORLD => self.form_collectives(),
            None => self.early_collectives(),
        }
    }

    #[cold]
    fn early_collectives(&self) -> Outcome<&onecopy::Comm> {
        if let Some(early) = self.early.get() {
            return Ok(early);
        }
        let made = self.links()?.own.by_messages(&self.ranks(), EARLY)?;
        Ok(self.early.get_or_init(|| made))
    }

    fn ranks(&self) -> onecopy::coll::Group {
        let ranks = self.group.ranks().iter().map(|&rank| rank as usize);
        onecopy::coll::Group::of(&ranks.collect::<Vec<_>>())
    }

    /// Agrees with the other members on the place of their collectives. All of them come here at the same point of
    /// their program.
    #[cold]
    fn form_collectives(&self) -> Outcome<&onecopy::Comm> {
        let links = self.links()?;
        let formed = if self.handle() == c::COMM_WORLD {
            links.link.clone()
        } else {
            links.own.create_from_group(&self.ranks(), AGREEMENT)?
        };
        Ok(self.collectives.get_or_init(|| formed))
    }

    /// A place of its own for a persistent collective: requests that were initialised in the same order may be started
    /// in any. All members come here, as to every initialisation. `None`: there are so many that this one shares the
    /// communicator's place, and has to be started in the same order by all.
    pub(crate) fn persistent_collective(&self) -> Outcome<Option<onecopy::Comm>> {
        if self.size() == 1 {
            return Ok(None);
        }
        let own = &self.links()?.own;
        match own.create_frugal(&self.ranks(), PERSISTENT) {
            Ok(made) => Ok(Some(made)),
            Err(onecopy::Error::Collective { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// A number that tells a persistent neighbourhood collective from others. All members come here in the same order.
    pub(crate) fn next_persistent(&self) -> i32 {
        (self.persistent.fetch_add(1, Ordering::Relaxed) & 0xf_ffff) as i32
    }

    /// A tag for the library's messages. All members call this in the same order.
    pub(crate) fn next_tag(&self) -> i32 {
        (self.tag.fetch_add(1, Ordering::Relaxed) & 0x1fff_ffff) as i32
    }

    pub(crate) fn handler(&self) -> Handler {
        *phase::lock(&self.handler)
    }

    pub(crate) fn set_handler(&self, handler: Handler) {
        let old = std::mem::replace(&mut *phase::lock(&self.handler), handler);
        old.release();
    }

    /// Its handle, for errors of its requests.
    pub(crate) fn handle(&self) -> Comm {
        self.handle.get().copied().unwrap_or(c::COMM_SELF)
    }
}

impl std::fmt::Debug for CommObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "communicator {:#x}", self.handle().0)
    }
}

impl Drop for CommObject {
    fn drop(&mut self) {
        self.handler().release();
    }
}

#[cold]
fn not_complete() -> Box<Failure> {
    fail(
        c::ERR_COMM,
        "the communicator is still being made: wait for the request of MPI_Comm_idup",
    )
}

#[cold]
fn bad_comm(handle: Comm) -> Box<Failure> {
    if world().is_none() {
        return phase::not_active();
    }
    let what = if handle == c::COMM_NULL {
        "MPI_COMM_NULL was given".to_owned()
    } else {
        format!("{:#x} is no communicator", handle.0)
    };
    fail(c::ERR_COMM, what)
}

/// A communicator that a call uses. Where several threads may call, one of them may free the communicator while another
/// waits on it. What waits completes, so the object stays until then.
#[derive(Debug)]
pub(crate) enum CommInUse {
    /// Nobody frees it during the call.
    Lent(&'static Arc<CommObject>),
    Kept(Arc<CommObject>),
}

impl std::ops::Deref for CommInUse {
    type Target = Arc<CommObject>;

    #[inline(always)]
    fn deref(&self) -> &Arc<CommObject> {
        match self {
            Self::Lent(comm) => comm,
            Self::Kept(comm) => comm,
        }
    }
}

/// The object of a handle, if there is one.
#[inline(always)]
pub(crate) fn lookup(handle: Comm) -> Option<CommInUse> {
    match lent(handle) {
        Some(comm) => Some(CommInUse::Lent(comm)),
        None if phase::is_forked() => None,
        None => COMMS.get(handle.0).cloned().map(CommInUse::Kept),
    }
}

/// The object of a handle, if nobody can free it during the call. `None` says nothing of the handle.
#[inline(always)]
pub(crate) fn lent(handle: Comm) -> Option<&'static Arc<CommObject>> {
    match handle {
        c::COMM_WORLD => world(),
        c::COMM_SELF => own(),
        _ if phase::is_forked() || phase::is_shared() => None,
        _ => COMMS.get(handle.0),
    }
}

/// The object of a handle.
#[inline(always)]
pub(crate) fn get(handle: Comm) -> Outcome<CommInUse> {
    match lookup(handle) {
        Some(comm) => Ok(comm),
        None => Err(bad_comm(handle)),
    }
}

/// A handle for a new communicator.
pub(crate) fn keep(comm: Arc<CommObject>) -> Outcome<Comm> {
    let object = Arc::clone(&comm);
    let handle = Comm(COMMS.insert(comm).ok_or_else(phase::too_many)?);
    let _ = object.handle.set(handle);
    Ok(handle)
}

/// Takes a handle back that the program was not given.
pub(crate) fn forget(handle: Comm) {
    COMMS.remove(handle.0);
}

pub(crate) fn comm_size(comm: Comm, size: Out<i32>) -> Outcome<()> {
    size.set(get(comm)?.size() as i32)
}

pub(crate) fn comm_rank(comm: Comm, rank: Out<i32>) -> Outcome<()> {
    rank.set(get(comm)?.rank as i32)
}

pub(crate) fn comm_group(comm: Comm, group: Out<Group>) -> Outcome<()> {
    group.set(group::keep(Arc::clone(&get(comm)?.group))?)
}

pub(crate) fn comm_compare(a: Comm, b: Comm, result: Out<i32>) -> Outcome<()> {
    let (first, second) = (get(a)?, get(b)?);
    result.set(match first.group.compare(&second.group) {
        c::IDENT if Arc::ptr_eq(&first, &second) => c::IDENT,
        c::IDENT => c::CONGRUENT,
        other => other,
    })
}

pub(crate) fn comm_free(comm: Out<Comm>) -> Outcome<()> {
    let handle = comm.get()?;
    let object = &get(handle)?;
    if handle == c::COMM_WORLD || handle == c::COMM_SELF {
        return Err(fail(
            c::ERR_COMM,
            "a predefined communicator cannot be freed",
        ));
    }
    attributes::delete_all(&object.attributes, handle.0).map_err(|failure| failure.on(object))?;
    // What is under way on it keeps the object, and with it the handler of its errors.
    COMMS.remove(handle.0);
    comm.set(c::COMM_NULL)
}

pub(crate) fn comm_get_name(comm: Comm, name: OutText, len: Out<i32>) -> Outcome<()> {
    let text = if comm == c::COMM_NULL {
        b"MPI_COMM_NULL".to_vec()
    } else {
        phase::lock(&get(comm)?.name).clone()
    };
    len.set(name.set(&text, c::MAX_OBJECT_NAME as usize)? as i32)
}

pub(crate) fn comm_set_name(comm: Comm, name: Text) -> Outcome<()> {
    let mut text = name.get()?;
    text.truncate(c::MAX_OBJECT_NAME as usize - 1);
    *phase::lock(&get(comm)?.name) = text;
    Ok(())
}

pub(crate) fn comm_get_info(comm: Comm, used: Out<Info>) -> Outcome<()> {
    let pairs = phase::lock(&get(comm)?.info).clone();
    used.set(info::make(pairs)?)
}

pub(crate) fn comm_set_info(comm: Comm, info: Info) -> Outcome<()> {
    let object = &get(comm)?;
    let pairs = info::pairs_or_none(info)?;
    let mut known = phase::lock(&object.info);
    for (key, value) in pairs {
        known.retain(|(other, _)| *other != key);
        known.push((key, value));
    }
    Ok(())
}
