// SPDX-License-Identifier: MIT OR Apache-2.0
//! The other side: a process that plays a role, and the socket by which the two agree.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use onecopy_verbs::provider::{Access, Kind};
use onecopy_verbs::queue::DATAGRAM_HEAD;
use onecopy_verbs::{Done, Local, Operation, QueuePair, QueuePairAddress, Ready, Remote, Verbs};

use crate::{LONG, Side, here, wait};

/// The Q_Key of datagrams.
pub(crate) const KEY: u32 = 0x1357;
/// Bytes of a slot.
pub(crate) const SLOT: usize = 64 << 10;

/// The socket by which the two sides exchange messages.
pub(crate) struct Link(TcpStream);

impl Link {
    fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(LONG)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Self(stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).expect("short");
        self.0
            .write_all(&length.to_le_bytes())
            .expect("the other side is there");
        self.0.write_all(bytes).expect("the other side is there");
    }

    /// What the other side sends, or nothing when it has ended.
    pub(crate) fn receive(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        if self.0.read_exact(&mut length).is_err() {
            return Vec::new();
        }
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut bytes).expect("the rest");
        bytes
    }

    fn connect(&mut self, side: &mut Side) -> QueuePair<Verbs, Ready> {
        let pair = side.prepared(Kind::Connection, 0, None);
        let own = pair.address(&side.chosen, 4711);
        self.send(&own.to_bytes());
        let peer = self.receive_address();
        let pair = pair
            .connect(&side.chosen, &own, &peer, side.timing)
            .expect("connected");
        // Nobody sends before the other receives.
        self.send(b"ready");
        assert_eq!(self.receive(), b"ready");
        pair
    }

    fn receive_address(&mut self) -> QueuePairAddress {
        let bytes = self.receive().try_into().expect("a pair");
        QueuePairAddress::from_bytes(&bytes).expect("a pair")
    }
}

/// The other side, as the first one sees it. It ends with this value.
pub(crate) struct Other {
    pub(crate) link: Link,
    child: Child,
}

impl Other {
    pub(crate) fn start(role: &str) -> Self {
        let listener = TcpListener::bind("0.0.0.0:0").expect("a socket");
        let port = listener.local_addr().expect("its address").port();
        let own = std::env::current_exe()
            .expect("this program")
            .display()
            .to_string();
        let mut command = Command::new("at");
        command.args(["b", &format!("exec {own} peer a:{port} {role}")]);
        let mut child = command.spawn().expect("at");
        listener
            .set_nonblocking(true)
            .expect("a socket that does not wait");
        let end = Instant::now() + LONG;
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).expect("a socket that waits");
                    return Self {
                        link: Link::over(stream),
                        child,
                    };
                }
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}"),
            }
            let ended = child.try_wait().expect("its state");
            assert!(
                ended.is_none_or(|status| status.success()),
                "the other side ended"
            );
            assert!(Instant::now() < end, "the other side did not come");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn connect(&mut self, side: &mut Side) -> QueuePair<Verbs, Ready> {
        self.link.connect(side)
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) {
        let end = Instant::now() + LONG;
        while self.child.try_wait().expect("its state").is_none() {
            assert!(Instant::now() < end, "the other side does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Plays a role.
pub(crate) fn be(place: &str, role: &str) {
    let mut link = Link::over(TcpStream::connect(place).expect("the first side"));
    match role {
        "echo" => echo(&mut link, 200),
        "memory" => memory(&mut link),
        "datagrams" => datagrams(&mut link),
        "sleep" => sleep(&mut link),
        "leave" => leave(&mut link),
        _ => panic!("no role '{role}'"),
    }
}

/// Sends back what comes, until a message begins with Q.
fn echo(link: &mut Link, receives: u64) {
    let mut side = here(256, SLOT);
    side.timing = super::faults::patient();
    side.fill(receives);
    let pair = link.connect(&mut side);
    let mut over = false;
    while !over || side.queue.under_way() > receives as usize {
        for done in wait(&mut side, LONG) {
            done.outcome.expect("nothing fails");
            let Some(slot) = done.slot.filter(|_| done.done == Done::Received) else {
                continue;
            };
            let bytes = slot.bytes(0..done.bytes);
            side.queue
                .receive_shared(&side.receives, slot, 0)
                .expect("room");
            over |= bytes.first() == Some(&b'Q');
            side.send(&pair, &bytes, 1).expect("room");
        }
    }
    link.send(b"over");
    link.receive();
}

/// Shows memory, and says what is in it.
fn memory(link: &mut Link) {
    let bytes: usize = String::from_utf8(link.receive())
        .expect("text")
        .parse()
        .expect("a number");
    let mut side = here(16, 1024);
    let access = Access {
        remote_read: true,
        remote_write: true,
    };
    let region = side.domain.region(1, bytes, access).expect("memory");
    let slot = region.take().expect("slot");
    let _pair = link.connect(&mut side);
    let Remote { address, key } = slot.remote(0);
    link.send(&[address.to_le_bytes().as_slice(), &key.to_le_bytes()].concat());
    while link.receive() == b"sum" {
        let mut sum = Sum::default();
        let mut offset = 0;
        while offset < bytes {
            let piece = (bytes - offset).min(1 << 20);
            sum.add(&slot.bytes(offset..offset + piece));
            offset += piece;
        }
        link.send(&sum.0.to_le_bytes());
    }
}

/// FNV by bytes: enough to tell one pattern from another.
pub(crate) struct Sum(pub(crate) u64);

impl Default for Sum {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Sum {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

fn datagrams(link: &mut Link) {
    let mut side = here(256, 2048);
    side.fill(200);
    let pair = side.prepared(Kind::Datagrams, KEY, None);
    let own = pair.address(&side.chosen, 0);
    let pair = pair.open().expect("open");
    link.send(&own.to_bytes());
    let peer = link.receive_address();
    let ah = side
        .domain
        .address_handle(&peer.path(&side.chosen))
        .expect("an address handle");
    let mut over = false;
    while !over {
        for done in wait(&mut side, LONG) {
            done.outcome.expect("nothing fails");
            let Some(slot) = done.slot.filter(|_| done.done == Done::Received) else {
                continue;
            };
            assert_eq!(done.source, peer.number);
            let bytes = slot.bytes(DATAGRAM_HEAD..done.bytes);
            side.queue
                .receive_shared(&side.receives, slot, 0)
                .expect("room");
            over = bytes.first() == Some(&b'Q');
            let mut slot = side.slot();
            slot.write(0, &bytes);
            let send = Operation::SendTo {
                ah: &ah,
                pair: peer.number,
                qkey: KEY,
                immediate: done.immediate,
            };
            pair.post(&mut side.queue, send, Local::first(slot, bytes.len()), 1)
                .expect("room");
        }
    }
    link.send(b"over");
    link.receive();
}

/// Connects, says who it is, and does nothing more.
fn sleep(link: &mut Link) {
    let mut side = here(64, 1024);
    side.fill(32);
    let _pair = link.connect(&mut side);
    link.send(std::process::id().to_string().as_bytes());
    // Until the first side ends.
    while !link.receive().is_empty() {}
}

/// Takes one message, notes it, and ends at once.
fn leave(link: &mut Link) {
    let mut side = here(64, 1024);
    side.fill(4);
    let _pair = link.connect(&mut side);
    let done = wait(&mut side, LONG).remove(0);
    let bytes = done.slot.expect("slot").bytes(0..done.bytes);
    std::fs::write("/tmp/left", bytes).expect("a note");
}
