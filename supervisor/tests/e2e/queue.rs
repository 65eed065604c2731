//! More runs than places.

use crate::support::World;

#[test]
fn a_run_without_a_place_waits_for_one_and_can_be_cancelled_meanwhile() {
    let world = World::configured("[sandbox]\nmax_concurrent = 1\n");
    world.sup(&["budget", "set", "default", "5"]).ends(0);
    let first = world.ready(&[], "echo ready; sleep 1000");
    let second = world.detached(&["--budget", "1"], "exit 2");
    let third = world.detached(&["--budget", "1"], "exit 3");
    assert_eq!(world.status(&second)["state"], "queued");
    assert_eq!(world.account("default")["usd_held"], "2");
    world.sup(&["cancel", &second]).ends(0);
    world.sup(&["wait", &second]).ends(143);
    assert_eq!(world.account("default")["usd_held"], "1");
    assert!(world.status(&second)["running_ms"].is_null(), "it ran");
    // Nothing was made for it, so nothing of it is left or stuck.
    assert!(world.status(&second)["stuck"].is_null(), "{}", world.status(&second));
    assert_eq!(world.receipt(&second)["leftovers"], serde_json::json!([]));
    assert_eq!(world.status(&third)["state"], "queued");
    world.sup(&["cancel", &first, "--grace", "0s"]).ends(0);
    world.sup(&["wait", &third]).ends(3);
    assert_eq!(world.account("default")["usd_held"], "0");
}

#[test]
fn many_runs_at_once_all_end_with_a_receipt() {
    let world = World::new();
    let ids: Vec<String> = (0..12).map(|n| world.detached(&[], &format!("exit {n}"))).collect();
    for (n, id) in (0..).zip(&ids) {
        world.sup(&["wait", id]).ends(n);
        assert_eq!(world.receipt(id)["client_status"], n);
    }
    world.sup(&["journal", "verify"]).ends(0);
}
