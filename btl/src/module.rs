// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel module, as this process finds it: its devices, what it can do, and what of this process's memory it
//! offers to peers.
//!
//! Two interfaces lead to a peer's memory. The *extension*, `/dev/onecopy`, grants a whole address space as one file
//! descriptor, which peers get with their introduction. A holder of it may map or copy, nobody else can. The *plain*
//! interfaces, `/dev/xpmem` and `/dev/knem`, name memory by numbers and work on every module that speaks them.
//!
//! # Safety
//! This process's memory is exposed to the ranks of its job, as `process_vm_readv` exposes it where the kernel permits
//! that. A correct peer writes only where a buffer is lent to the runtime for receiving, and reads only what was
//! announced to it. The ranks of a job trust one another this far (docs/trust-model.md). What is exposed here ends with
//! the value that exposes it.
#![allow(
    unsafe_code,
    reason = "exposes memory of this process to peers of its job"
)]

use crate::refusal::{Probe, Refusal};
use onecopy_obs::ModuleAbi;
pub use onecopy_sys::onecopy_stats as Stats;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The remedy where there is no module.
pub const LOAD: &str = "load the module: see kmod/README.md";
const UNSET: &str = "set ONECOPY_MODULE_ABI=auto";
const PERMIT: &str = "permit this user to open the device: see the udev rule in kmod/README.md";

/// A device that cannot be used.
fn refused(device: &str, error: &io::Error) -> Refusal {
    let remedy = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => LOAD,
        Some(libc::EACCES | libc::EPERM) => PERMIT,
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit on descriptors (ulimit -n)",
        _ => "see kmod/README.md",
    };
    Refusal::new(format!("{device}: {error}"), remedy)
}

fn switched_off(device: &str, abi: ModuleAbi) -> Refusal {
    Refusal::new(
        format!("{device} is not used: ONECOPY_MODULE_ABI={abi}"),
        UNSET,
    )
}

/// Neither interface can be used.
fn neither(plain: &Refusal, extension: &Refusal) -> Refusal {
    let remedy = if plain.remedy == UNSET {
        &extension.remedy
    } else {
        &plain.remedy
    };
    Refusal::new(
        format!("{}, and {}", plain.reason, extension.reason),
        remedy.clone(),
    )
}

/// A device, or why it is not used.
pub type Found<D> = Result<Arc<D>, Refusal>;

/// The devices of the module.
#[derive(Debug, Clone)]
pub struct Module {
    /// The extension.
    pub onecopy: Found<onecopy_sys::Device>,
    /// Attachments by number.
    pub xpmem: Found<xpmem_sys::Device>,
    /// Copies by cookie.
    pub knem: Found<knem_sys::Device>,
}

/// The process has one open XPMEM device: some modules keep their state by process, not by open file.
static XPMEM: Mutex<Weak<xpmem_sys::Device>> = Mutex::new(Weak::new());
/// And one segment, the whole address space.
static EXPORT: Mutex<Weak<PlainExport>> = Mutex::new(Weak::new());

fn shared_xpmem() -> io::Result<Arc<xpmem_sys::Device>> {
    let mut known = XPMEM.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = known.upgrade() {
        return Ok(device);
    }
    let device = Arc::new(xpmem_sys::Device::open()?);
    *known = Arc::downgrade(&device);
    Ok(device)
}

impl Module {
    /// Opens what the layers that are permitted can use.
    #[must_use]
    pub fn open(xpmem: bool, knem: bool, abi: ModuleAbi) -> Self {
        let off = |device| switched_off(device, abi);
        let unused = |device: &str| {
            Refusal::new(
                format!("{device} is used by no layer of ONECOPY_LAYERS"),
                "change ONECOPY_LAYERS",
            )
        };
        let extension = onecopy_sys::ONECOPY_DEVICE_FILENAME;
        Self {
            onecopy: match (xpmem || knem, abi) {
                (false, _) => Err(unused(extension)),
                (_, ModuleAbi::Plain) => Err(off(extension)),
                _ => open_extension(),
            },
            xpmem: match (xpmem, abi) {
                (false, _) => Err(unused(xpmem_sys::DEVICE)),
                (_, ModuleAbi::Onecopy) => Err(off(xpmem_sys::DEVICE)),
                _ => open_xpmem(),
            },
            knem: match (knem, abi) {
                (false, _) => Err(unused(knem_sys::KNEM_DEVICE_FILENAME)),
                (_, ModuleAbi::Onecopy) => Err(off(knem_sys::KNEM_DEVICE_FILENAME)),
                _ => open_knem(),
            },
        }
    }
}

/// What the module counts, of all devices and users.
///
/// # Errors
///
/// The refusal of its device.
pub fn counters() -> Result<Stats, Refusal> {
    let device = open_extension()?;
    let stats = device.stats();
    stats.map_err(|error| refused(onecopy_sys::ONECOPY_DEVICE_FILENAME, &error))
}

fn open_extension() -> Found<onecopy_sys::Device> {
    let device = onecopy_sys::ONECOPY_DEVICE_FILENAME;
    let found = onecopy_sys::Device::open().map_err(|e| refused(device, &e))?;
    match found.info() {
        Ok(info) if info.abi >= onecopy_sys::ONECOPY_ABI_VERSION => Ok(Arc::new(found)),
        Ok(info) => Err(Refusal::new(
            format!("{device} speaks version {} of its interface", info.abi),
            "load the module of this release: see kmod/README.md",
        )),
        Err(error) => Err(refused(device, &error)),
    }
}

fn open_xpmem() -> Found<xpmem_sys::Device> {
    let device = xpmem_sys::DEVICE;
    if !onecopy_shm::guard::available() {
        return Err(Refusal::new(
            format!("{device}: a hole in an attachment cannot be survived on this processor"),
            "load the module of this release, whose /dev/onecopy raises no signals",
        ));
    }
    let found = shared_xpmem().map_err(|e| refused(device, &e))?;
    match found.version() {
        // Version 1 had other structures.
        Ok(version) if version >> 16 >= 2 => Ok(found),
        Ok(version) => Err(Refusal::new(
            format!("{device} speaks version {}", version_text(version)),
            "load a module that speaks the XPMEM ABI 2",
        )),
        Err(error) => Err(refused(device, &error)),
    }
}

fn open_knem() -> Found<knem_sys::Device> {
    /// Regions and inline copies are as they are since.
    const OLDEST: u32 = 0xc;
    let device = knem_sys::KNEM_DEVICE_FILENAME;
    let found = knem_sys::Device::open().map_err(|e| refused(device, &e))?;
    match found.info() {
        Ok(info) if info.abi >= OLDEST => Ok(Arc::new(found)),
        Ok(info) => Err(Refusal::new(
            format!("{device} speaks the KNEM ABI {:#x}", info.abi),
            "load a module that speaks the KNEM ABI 0xc or 0xd",
        )),
        Err(error) => Err(refused(device, &error)),
    }
}

fn version_text(version: u32) -> String {
    format!(
        "{}.{}.{}",
        version >> 16,
        version >> 12 & 0xf,
        version & 0xfff
    )
}

/// The interface by which a layer reaches a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    /// `/dev/onecopy`.
    Extension,
    /// `/dev/xpmem` or `/dev/knem`.
    Plain,
}

impl Interface {
    /// By which of those that both ranks have a pair talks; none if they have none in common.
    #[must_use]
    pub fn of_pair(extension: bool, plain: bool) -> Option<Self> {
        match (extension, plain) {
            (true, _) => Some(Self::Extension),
            (false, true) => Some(Self::Plain),
            (false, false) => None,
        }
    }
}

fn no_offer(peer: u32, what: &str) -> Refusal {
    Refusal::new(
        format!("rank {peer} offers no {what}"),
        "load the module before the job starts, for all ranks, and give them the same ONECOPY_LAYERS",
    )
}

/// The interface by which a pair talks, with what both sides have for it.
#[derive(Debug)]
pub(crate) enum AgreedInterface<'m, D, O> {
    Extension {
        device: &'m Arc<onecopy_sys::Device>,
        /// By which the peer granted its memory.
        grant: BorrowedFd<'m>,
    },
    Plain {
        device: &'m Arc<D>,
        /// The number that the peer announced.
        offer: O,
    },
}

/// What a pair has for the interface by which it talks ([`Interface::of_pair`]).
pub(crate) fn interface<'m, D, O>(
    peer: u32,
    (extension, grant): (&'m Found<onecopy_sys::Device>, Option<BorrowedFd<'m>>),
    (plain, offer): (&'m Found<D>, Option<O>),
    what: &str,
) -> Result<AgreedInterface<'m, D, O>, Refusal> {
    let by_extension = extension.as_ref().ok().zip(grant);
    let by_plain = plain.as_ref().ok().zip(offer);
    match Interface::of_pair(by_extension.is_some(), by_plain.is_some()) {
        Some(Interface::Extension) => {
            by_extension.map(|(device, grant)| AgreedInterface::Extension { device, grant })
        }
        Some(Interface::Plain) => {
            by_plain.map(|(device, offer)| AgreedInterface::Plain { device, offer })
        }
        None => None,
    }
    .ok_or_else(|| match (extension, plain) {
        (Err(extension), Err(plain)) => neither(plain, extension),
        _ => no_offer(peer, what),
    })
}

/// What one should know of a layer that reaches into another process.
pub const QUESTIONS: [&str; 6] = [
    "who reaches a rank's memory",
    "namespaces, Yama",
    "the peer ends or frees while it is read",
    "pages pinned",
    "other memory at the same address",
    "what the owner may not write",
];

/// The answers to [`QUESTIONS`], by each interface.
#[derive(Debug)]
pub struct Guarantees {
    /// By the extension.
    pub extension: [&'static str; 6],
    /// By the plain interface.
    pub plain: [&'static str; 6],
}

impl Guarantees {
    /// Those of an interface.
    #[must_use]
    pub fn for_interface(&self, interface: Interface) -> [&'static str; 6] {
        match interface {
            Interface::Extension => self.extension,
            Interface::Plain => self.plain,
        }
    }
}

/// Which module stands behind a layer, in words, and by which interface; or why none does.
pub type Behind = Result<(String, Interface), Refusal>;

impl Module {
    /// What stands behind the layer `xpmem`.
    pub fn behind_xpmem(&self) -> Behind {
        self.behind(&self.xpmem, |device| {
            let version = device.version().map(version_text).unwrap_or_default();
            format!("a module that speaks the XPMEM ABI {version}, by /dev/xpmem")
        })
    }

    /// What stands behind the layer `knem`.
    pub fn behind_knem(&self) -> Behind {
        self.behind(&self.knem, |device| {
            let abi = device.info().map(|info| info.abi).unwrap_or_default();
            format!("a module that speaks the KNEM ABI {abi:#x}, by /dev/knem")
        })
    }

    fn behind<D>(&self, plain: &Found<D>, text: impl FnOnce(&D) -> String) -> Behind {
        match (&self.onecopy, plain) {
            (Ok(device), _) => Ok((release(device), Interface::Extension)),
            (Err(_), Ok(device)) => Ok((text(device), Interface::Plain)),
            (Err(extension), Err(plain)) => Err(neither(plain, extension)),
        }
    }
}

fn release(device: &onecopy_sys::Device) -> String {
    let info = device.info().unwrap_or_default();
    let text = info.release.split(|&byte| byte == 0).next();
    let text = String::from_utf8_lossy(text.unwrap_or_default()).into_owned();
    format!("the module of onecopy, release {text}, by /dev/onecopy")
}

/// What a look at the devices says about a layer of the module.
#[must_use]
pub fn probe(behind: Behind) -> Probe {
    match behind {
        Ok((detail, _)) => Probe::Available { detail },
        Err(refusal) => Probe::Unavailable(refusal),
    }
}

/// What a rank tells its peers, so that they reach its memory by the plain interfaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Export {
    /// Its whole address space, as an XPMEM segment.
    pub segid: Option<i64>,
    /// The number that only its segment has, as a KNEM region of eight bytes.
    pub proof: Option<u64>,
}

/// The whole address space as an XPMEM segment.
#[derive(Debug)]
struct PlainExport {
    device: Arc<xpmem_sys::Device>,
    segid: i64,
    pid: u32,
}

impl Drop for PlainExport {
    fn drop(&mut self) {
        // A child of a fork shares the open device: the segment is its parent's.
        if self.pid == std::process::id() {
            let _ = self.device.remove(self.segid);
        }
    }
}

fn export_plain(device: &Arc<xpmem_sys::Device>) -> io::Result<Arc<PlainExport>> {
    let mut known = EXPORT.lock().unwrap_or_else(PoisonError::into_inner);
    let own = std::process::id();
    if let Some(export) = known.upgrade().filter(|export| export.pid == own) {
        return Ok(export);
    }
    // SAFETY: peers of the same user reach this memory; what they do with it is said at the top. Mode 0600: no other
    // user.
    let segid = unsafe { device.make(0, xpmem_sys::XPMEM_MAXADDR_SIZE, 0o600) }?;
    let export = Arc::new(PlainExport {
        device: Arc::clone(device),
        segid,
        pid: own,
    });
    *known = Arc::downgrade(&export);
    Ok(export)
}

/// Memory that peers may read by KNEM, until this is dropped.
#[derive(Debug)]
pub struct Region {
    device: Arc<knem_sys::Device>,
    cookie: u64,
    pid: u32,
}

impl Region {
    /// Exposes pieces (address, bytes) of this process's memory, in order, for reading. The kernel pins their pages.
    ///
    /// # Errors
    /// That of the device: `EFAULT` for memory that is not there, `ENOMEM` where its pages cannot be pinned.
    pub fn expose(
        device: &Arc<knem_sys::Device>,
        pieces: impl Iterator<Item = (usize, usize)>,
    ) -> io::Result<Self> {
        let pieces: Vec<_> = pieces
            .filter(|&(_, len)| len > 0)
            .map(|(address, len)| knem_sys::knem_cmd_param_iovec {
                base: address as u64,
                len: len as u64,
            })
            .collect();
        // SAFETY: for reading only: nobody writes through it. The kernel checks the addresses.
        let cookie = unsafe { device.create_region(&pieces, libc::PROT_READ as u32, 0) }?;
        Ok(Self {
            device: Arc::clone(device),
            cookie,
            pid: std::process::id(),
        })
    }

    /// Its name.
    #[must_use]
    pub fn cookie(&self) -> u64 {
        self.cookie
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            let _ = self.device.destroy_region(self.cookie);
        }
    }
}

/// What this process exposes by the module, until it is dropped.
#[derive(Debug, Default)]
pub struct Exposed {
    grant: Option<onecopy_sys::Segment>,
    plain: Option<Arc<PlainExport>>,
    proof: Option<Region>,
}

impl Exposed {
    /// Exposes this process's memory by each interface of the module. `nonce` is the address of the number that only
    /// this rank has. What is refused is left out: peers then see that it is missing.
    #[must_use]
    pub fn new(module: &Module, nonce: usize) -> Self {
        let grant = module.onecopy.as_ref().ok().and_then(|device| {
            // SAFETY: only peers of the job get the descriptor; what they do with it is said at the top.
            let made = unsafe { device.export(0, onecopy_sys::ONECOPY_WHOLE, true) };
            noted("export to /dev/onecopy", made)
        });
        let plain = module.xpmem.as_ref().ok();
        let plain = plain.and_then(|device| noted("XPMEM make", export_plain(device)));
        let proof = module.knem.as_ref().ok().and_then(|device| {
            let made = Region::expose(device, std::iter::once((nonce, 8)));
            noted("KNEM create region", made)
        });
        Self {
            grant,
            plain,
            proof,
        }
    }

    /// The descriptor for peers, if the extension made one.
    #[must_use]
    pub fn grant(&self) -> Option<BorrowedFd<'_>> {
        self.grant.as_ref().map(AsFd::as_fd)
    }

    /// The numbers for peers.
    #[must_use]
    pub fn export(&self) -> Export {
        Export {
            segid: self.plain.as_ref().map(|plain| plain.segid),
            proof: self.proof.as_ref().map(Region::cookie),
        }
    }
}

fn noted<T>(what: &str, made: io::Result<T>) -> Option<T> {
    made.inspect_err(|error| tracing::info!("{what}: {error}"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_device_error_and_remedy() {
        let refusal =
            |errno| refused("/dev/xpmem", &io::Error::from_raw_os_error(errno)).to_string();
        assert!(refusal(libc::ENOENT).contains("/dev/xpmem"));
        assert!(refusal(libc::ENOENT).ends_with("load the module: see kmod/README.md"));
        assert!(refusal(libc::EACCES).contains("udev rule"));
    }

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(version_text(xpmem_sys::XPMEM_CURRENT_VERSION), "2.7.4");
        assert_eq!(version_text(0x0002_6005), "2.6.5");
    }

    #[test]
    fn a_switch_keeps_devices_closed() {
        let module = Module::open(true, true, ModuleAbi::Plain);
        assert!(
            module
                .onecopy
                .expect_err("off")
                .reason
                .contains("ONECOPY_MODULE_ABI")
        );
        let module = Module::open(true, false, ModuleAbi::Onecopy);
        assert!(
            module
                .knem
                .expect_err("off")
                .reason
                .contains("ONECOPY_LAYERS")
        );
        assert!(module.xpmem.is_err());
    }
}
