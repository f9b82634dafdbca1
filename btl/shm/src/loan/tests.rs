// SPDX-License-Identifier: MIT OR Apache-2.0

use super::*;
use std::rc::Rc;

#[derive(Clone, Default)]
struct Engine(Rc<RefCell<LoanTable>>);
impl WithLoans for Engine {
    fn with_loans<R>(&self, f: impl FnOnce(&mut LoanTable) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }
}

#[test]
fn a_loan_ends_with_its_closure_and_its_number_is_dead_then() {
    let engine = Engine::default();
    let mut buffer = [1u8, 2, 3];
    let loan = lend_mut(&engine, &mut buffer, |loan| {
        engine
            .0
            .borrow_mut()
            .write(loan.range(1, 1), |b| b[0] = 9)
            .unwrap();
        loan
    });
    assert_eq!(buffer, [1, 9, 3]);
    assert_eq!(
        engine.0.borrow().read(loan.range(0, 1), |_| ()),
        Err(LoanError::Ended)
    );
    let other = [0u8; 8];
    lend(&engine, &other, |fresh| {
        assert_eq!(
            engine.0.borrow().read(loan.range(0, 1), |_| ()),
            Err(LoanError::Ended),
            "the entry is used again, the number is not"
        );
        assert_eq!(
            engine.0.borrow_mut().write(fresh.range(0, 1), |_| ()),
            Err(LoanError::ReadOnly)
        );
        assert!(matches!(
            engine.0.borrow().read(fresh.range(5, 4), |_| ()),
            Err(LoanError::Outside { .. })
        ));
        assert!(matches!(
            engine.0.borrow().read(fresh.range(usize::MAX, 2), |_| ()),
            Err(LoanError::Outside { .. })
        ));
    });
    assert_eq!(engine.0.borrow().outstanding(), 0);
}

#[test]
fn a_panic_ends_the_loan_too() {
    let engine = Engine::default();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        lend(&engine, &[1, 2], |_| panic!("on purpose"))
    }));
    assert!(result.is_err());
    assert_eq!(engine.0.borrow().outstanding(), 0);
}

#[test]
fn an_owned_buffer_comes_back() {
    let engine = Engine::default();
    let owned = Owned::new_mut(engine.clone(), vec![0u32; 4]);
    engine
        .0
        .borrow_mut()
        .write(owned.loan().range(4, 4), |b| {
            b.copy_from_slice(&7u32.to_ne_bytes())
        })
        .unwrap();
    assert_eq!(owned.take(), [0, 7, 0, 0]);
    assert_eq!(engine.0.borrow().outstanding(), 0);
    drop(Owned::new(engine.clone(), vec![1u8]));
    assert_eq!(engine.0.borrow().outstanding(), 0);
    assert_eq!(Rc::strong_count(&engine.0), 1);
}

#[test]
fn a_scope_ends_its_loans_after_settling() {
    let engine = Engine::default();
    let mut buffer = vec![0u8; 16];
    let source = [5u8; 16];
    scope(
        &engine,
        || assert_eq!(engine.0.borrow().outstanding(), 2),
        |s| {
            let to = s.lend_mut(&mut buffer);
            let from = s.lend(&source);
            engine
                .0
                .borrow_mut()
                .copy(LoanRange::whole(from), to, 0)
                .unwrap();
        },
    );
    assert_eq!(buffer, source);
    assert_eq!(engine.0.borrow().outstanding(), 0);
}
