// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which ports are rails.

use super::{Reading, STRIPE, bytes, fabric, join, settings, show, until, until_rails};
use onecopy_verbs::adapter::{Lanes, Settings};
use onecopy_verbs::model::{Fabric, usual_limits};
use onecopy_verbs::{Rails, port};
use std::time::{Duration, Instant};

/// The ports of one device are rails, too: each hears of its own events alone.
#[test]
fn ports_of_one_device_are_rails() {
    let fabric = Fabric::new(&[]);
    for host in ["a", "b"] {
        fabric.add(host, usual_limits());
        fabric.add_port(host, 1, 25_000);
    }
    let open = |host: &str, port| {
        let settings = Settings {
            device: Some(host.to_owned()),
            port,
            ..settings()
        };
        Rails::open(&fabric, settings).expect("a device")
    };
    let (mut a, mut b) = join(open("a", None), open("b", None));
    until_rails(&mut a, &mut b, 2);
    assert_eq!(a.rails(), ["a port 1", "a port 2"]);
    assert_eq!(fabric.opens(), 4, "each port has an open device of its own");
    let message = bytes(400 * STRIPE, 1);
    let shown = show(&mut a, &mut b, &message);
    let mut reading = Reading::of(1, &shown, message.len());
    assert!(reading.step(&mut a, usize::MAX, 0));
    // The second port is lost amid the message.
    fabric.set_port_link("a", 2, false);
    a.lanes.hear_device();
    a.works();
    reading.finish(&mut a, 9);
    assert!(reading.got == message);
    let figures = a.lanes.figures();
    assert_eq!(figures.rails_lost, 1);
    assert!(
        figures.striped > 0 && figures.stripes_again > 0,
        "{figures:?}"
    );
    until("lost", || {
        a.lanes.poll();
        b.lanes.poll();
        b.rails() == ["b port 1"]
    });
    fabric.set_port_link("a", 2, true);
    a.lanes.hear_device();
    let begin = Instant::now();
    let mut seconds = 0;
    until("back", || {
        seconds += 1;
        for side in [&mut a, &mut b] {
            side.lanes.age(begin + Duration::from_secs(seconds));
            side.lanes.poll();
        }
        a.rails().len() == 2 && b.rails().len() == 2
    });
    // Then the first one, by which the stream goes.
    fabric.set_link("a", false);
    a.lanes.hear_device();
    assert!(a.lanes.has_failed(a.lane));
    for side in [&mut a, &mut b] {
        side.lanes.close(side.lane);
    }
    let (a, b) = join(a.lanes, b.lanes);
    assert_eq!(
        (a.rails(), b.rails()),
        (vec!["a port 2".to_owned()], vec!["b port 2".to_owned()])
    );
    // A rank that may use one of them.
    fabric.set_link("a", true);
    let (mut a, mut b) = join(open("a", Some(2)), open("b", None));
    a.word(&mut b);
    assert_eq!(
        (a.rails(), b.rails()),
        (vec!["a port 2".to_owned()], vec!["b port 2".to_owned()])
    );
}

/// A device that is named twice is one rail.
#[test]
fn a_device_that_is_named_twice_is_opened_once() {
    let fabric = fabric(&[25_000; 2]);
    let sides = ["a", "b"].map(|host| {
        let settings = Settings {
            device: Some(format!("{host}1,{host}0,{host}1")),
            ..settings()
        };
        Rails::open(&fabric, settings).expect("devices")
    });
    assert_eq!(fabric.opens(), 4);
    let [a, b] = sides;
    let (mut a, mut b) = join(a, b);
    until_rails(&mut a, &mut b, 2);
    assert_eq!(fabric.pairs(), 4);
}

/// A device whose port is down is opened to look at it.
#[test]
fn each_port_is_looked_at_once_whatever_was_found_before() {
    let fabric = fabric(&[25_000, 100_000]);
    fabric.set_link("a0", false);
    let mut search = port::Search::new(&fabric, None, None, None).expect("devices");
    let first = search.first().expect("a port");
    assert_eq!((first.device.name(), fabric.opens()), ("a1", 2));
    let ports = search.rails(first, 8);
    let names: Vec<_> = ports.iter().map(|port| port.device.name()).collect();
    assert_eq!(names, ["a1", "b1", "b0"]);
    assert_eq!((fabric.opens(), fabric.looks()), (4, 4));
}
