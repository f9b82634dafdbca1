// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;

fn unique(what: &str) -> String {
    format!("test-{what}-{}", std::process::id())
}

fn meets(listener: &Listener, address: &Address) {
    let guest = address.connect().expect("connect");
    let host = listener.accept().expect("accept");
    fdpass::send(guest.as_fd(), b"hello", &[], fdpass::Wait::Never).expect("send");
    let mut buffer = [0; 8];
    let got = fdpass::recv(host.as_fd(), &mut buffer, 0, fdpass::Wait::Never).expect("recv");
    assert_eq!(&buffer[..got.len], b"hello");
    assert!(got.from.is_some(), "credentials come along");
    assert!(listener.accept().is_none());
}

#[test]
fn every_way_leads_to_its_door_and_ends_with_it() {
    let name = unique("abstract");
    let listener = Listener::at_abstract(&name).expect("abstract");
    assert!(Listener::at_abstract(&name).is_err(), "taken");
    meets(&listener, &Address::Abstract(name.clone()));
    drop(listener);
    assert!(Address::Abstract(name).connect().is_err());

    let name = unique("process");
    let opened = Listener::at_process(&name).expect("process");
    let OpenListener { listener, address } = opened;
    for base in BASES {
        let file = Folder::below(Path::new(base)).file(&name);
        assert!(!file.exists(), "the name is gone before anyone comes");
    }
    meets(&listener, &address);
    drop(listener);
    assert!(address.connect().is_err());

    let listener = Listener::at_path(&unique("path")).expect("path");
    let address = listener.address().expect("named");
    meets(&listener, &address);
    drop(listener);
    let Address::Path(path) = &address else {
        panic!("{address:?}")
    };
    assert!(!path.exists());
}

#[test]
fn what_a_killed_job_left_is_swept_and_nothing_else() {
    let base = std::env::temp_dir().join(unique("base"));
    std::fs::create_dir(&base).expect("base");
    let alive = Listener::below(&base, "alive").expect("alive");
    let folder = Folder::below(&base);
    UnixListener::bind(folder.file("dead")).expect("dead");
    std::fs::write(folder.file("file"), b"").expect("a file");
    let other = Listener::below(&base, "other").expect("other");
    assert!(!folder.file("dead").exists());
    assert!(folder.file("alive").exists() && folder.file("file").exists());
    drop((alive, other));
    assert!(folder.path.exists(), "something is in it");
    std::fs::remove_file(folder.file("file")).expect("remove");
    drop(Listener::below(&base, "last").expect("last"));
    assert!(!folder.path.exists());
    std::fs::remove_dir_all(&base).expect("clean up");
}

/// What another user, or a mistake, can put where the folder would be.
#[test]
fn what_stands_in_the_folders_place_is_passed_over() {
    let base = std::env::temp_dir().join(unique("squatted"));
    std::fs::create_dir(&base).expect("base");
    let folder = Folder::below(&base);
    let nobody = Some(nix::unistd::Uid::from_raw(65534));
    let root = nix::unistd::geteuid().is_root();
    let elsewhere = base.join("elsewhere");
    for kind in ["open to all", "another user's", "a link", "a file"] {
        match kind {
            "open to all" => DirBuilder::new().mode(0o755).create(&folder.path),
            "another user's" if !root => continue,
            "another user's" => DirBuilder::new().mode(0o700).create(&folder.path),
            "a link" => std::fs::create_dir(&elsewhere)
                .and_then(|()| std::os::unix::fs::symlink(&elsewhere, &folder.path)),
            _ => std::fs::write(&folder.path, b""),
        }
        .expect(kind);
        if kind == "another user's" {
            nix::unistd::chown(&folder.path, nobody, None).expect("chown");
        }
        let listener = Listener::below(&base, "x").expect(kind);
        let others = Folder::others(&base);
        let [other] = &others[..] else {
            panic!("{kind}: {others:?}")
        };
        assert!(other.is_ours() && !folder.is_ours(), "{kind}");
        meets(&listener, &Address::Path(other.file("x")));
        drop(listener);
        assert!(Folder::others(&base).is_empty(), "{kind}");
        // Links are not followed, to nowhere.
        if elsewhere.exists() {
            assert_eq!(std::fs::read_dir(&elsewhere).expect("read").count(), 0);
        }
        let _ = std::fs::remove_file(&folder.path);
        let _ = std::fs::remove_dir(&folder.path);
    }
    // One that a killed job left, and one of the same kind that is not ours.
    let left = Folder::unforeseen(&base).expect("a name");
    drop(left.enter().expect("made"));
    UnixListener::bind(left.file("dead")).expect("dead");
    if root {
        let strange = base.join(format!("{}-0", folder.path.display()));
        std::fs::create_dir(&strange).expect("made");
        nix::unistd::chown(&strange, nobody, None).expect("chown");
        assert_eq!(Folder::others(&base).len(), 1);
    }
    drop(Listener::below(&base, "x").expect("listener"));
    assert!(!left.path.exists());
    std::fs::remove_dir_all(&base).expect("clean up");
}

#[test]
fn a_full_queue_holds_nobody_up() {
    let name = unique("full");
    let address = Address::Abstract(name.clone());
    let socket = packets(SockFlag::empty()).expect("socket");
    let place = address.socket_address().expect("address");
    bind(socket.as_raw_fd(), &place).expect("bind");
    listen(&socket, Backlog::new(0).expect("backlog")).expect("listen");
    let mut waiting = Vec::new();
    let full = loop {
        match address.connect() {
            Ok(guest) => waiting.push(guest),
            Err(error) => break error,
        }
        assert!(waiting.len() < 100_000, "the queue is never full");
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock, "{full}");
    let limit = Duration::from_millis(20);
    let full = address.connect_within(limit).expect_err("full still");
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock, "{full}");
    let listener = UnixListener::from(socket);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| address.connect_within(Duration::from_secs(60)));
        for _ in 0..=waiting.len() {
            drop(listener.accept().expect("accept"));
        }
        connecting.join().expect("thread").expect("connect");
    });
}

#[test]
fn words_carry_addresses_and_places() {
    for address in [
        Address::Abstract("x-1".to_owned()),
        Address::Process { pid: 7, fd: 9 },
        Address::Path("/dev/shm/onecopy-0/x".into()),
    ] {
        assert_eq!(Address::decode(&address.encode()), Some(address));
    }
    assert_eq!(Address::decode("p:1"), None);
    let place = Namespaces::of_this_process(None);
    assert_eq!(Namespaces::decode(&place.encode()), Some(place));
    assert_eq!(Namespaces::decode("a:1:2"), None);
}

fn namespaces() -> Namespaces {
    Namespaces {
        machine: "n".to_owned(),
        net: 1,
        user: 2,
        proc: 3,
        bases: [(4, 1), (5, 1)],
    }
}

#[test]
fn the_best_common_way_is_chosen() {
    let here = namespaces();
    let way = |change: &dyn Fn(&mut Namespaces)| {
        let mut other = here.clone();
        change(&mut other);
        here.listener_kind(&[here.clone(), other])
    };
    assert_eq!(way(&|_| {}), Ok(ListenerKind::Abstract));
    assert_eq!(way(&|other| other.net = 9), Ok(ListenerKind::Process));
    let hidden = |other: &mut Namespaces| (other.net, other.proc) = (9, 9);
    assert_eq!(way(&hidden), Ok(ListenerKind::Path));
    let apart = |other: &mut Namespaces| {
        hidden(other);
        other.bases = [(8, 8), (5, 1)];
    };
    assert!(way(&apart).is_err());
}

#[test]
fn ranks_between_which_no_way_leads_are_on_several_nodes() {
    let here = namespaces();
    let nodes = |change: &dyn Fn(&mut Namespaces)| {
        let mut other = here.clone();
        change(&mut other);
        let places = [here.clone(), other.clone(), here.clone(), other];
        let nodes = Namespaces::nodes(&places);
        (0..4)
            .map(|rank| nodes.node(rank).expect("a rank"))
            .collect::<Vec<_>>()
    };
    let together = [0, 0, 0, 0];
    let apart = [0, 1, 0, 1];
    assert_eq!(nodes(&|_| {}), together);
    assert_eq!(nodes(&|other| other.machine = "m".to_owned()), apart);
    assert_eq!(nodes(&|other| other.machine = "n+name".to_owned()), apart);
    // Each of these leaves a way.
    assert_eq!(nodes(&|other| other.net = 9), together);
    assert_eq!(nodes(&|other| (other.net, other.proc) = (9, 9)), together);
    let none = |other: &mut Namespaces| {
        (other.net, other.proc) = (9, 9);
        other.bases[0] = (8, 8);
    };
    assert_eq!(nodes(&none), apart);
    // A name makes nodes of one machine, whose ranks reach each other all the same.
    let named = Namespaces {
        machine: "n+name".to_owned(),
        ..here.clone()
    };
    assert!(here.shares_network(&[named]));
    let far = Namespaces {
        machine: "m".to_owned(),
        ..here.clone()
    };
    assert!(!here.shares_network(&[far]));
}
