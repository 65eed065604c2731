//! Budgets: a hold before anything is made, nothing held when it is over.

use crate::support::World;

#[test]
fn a_budget_without_an_account_is_refused() {
    let world = World::new();
    world.sup(&["run", "--budget", "1", "--", "true"]).ends(125).says("budget.no_account");
    world.sup(&["budget", "show", "default"]).ends(3).says("budget.no_account");
}

#[test]
fn a_hold_is_shown_while_the_run_lives_and_released_when_it_has_ended() {
    let world = World::new();
    world.sup(&["budget", "set", "default", "5"]).ends(0);
    let run = world.ready(&["--budget", "2"], "echo ready; sleep 1000");
    assert_eq!(world.status(&run)["budget"]["usd_held"], "2");
    let account = world.account("default");
    assert_eq!((&account["usd_held"], &account["usd_available"]), (&"2".into(), &"3".into()));
    // B1: what is held cannot be held again.
    world.sup(&["run", "--budget", "3.01", "--", "true"]).ends(125).says("budget.insufficient");
    world
        .sup(&["run", "-q", "--budget", "3.01", "--", "true"])
        .ends(125)
        .says("budget.insufficient");
    let refused = world.sup(&["run", "--detach", "--budget", "3.01", "--", "true"]);
    let refused = refused.ends(125).says("budget.insufficient");
    // The remedy reaches this account and not the user's own.
    refused.tells(&format!("--state-dir {}", world.state().display()));
    world.sup(&["run", "--budget", "3", "--", "true"]).ends(0);
    world.sup(&["cancel", &run]).ends(0);
    world.sup(&["wait", &run]).ends(143);
    let account = world.account("default");
    assert_eq!((&account["usd_held"], &account["usd_available"]), (&"0".into(), &"5".into()));
    let budget = &world.receipt(&run)["budget"];
    assert_eq!((&budget["held"], &budget["reported"]), (&"2".into(), &"0".into()));
    assert_eq!(budget["quality"], "none");
    assert!(budget["note"].as_str().unwrap().contains("none reported"), "{budget}");
}

#[test]
fn accounts_of_the_configuration_are_there_and_can_be_changed_within_what_is_used() {
    let world = World::configured("[budget.default]\nusd = \"1.50\"\nper = \"day\"\n");
    let account = world.account("default");
    assert_eq!((&account["usd_limit"], &account["per"]), (&"1.50".into(), &"day".into()));
    let run = world.ready(&["--budget", "1.25"], "echo ready; sleep 1000");
    world.sup(&["budget", "set", "default", "1"]).ends(4).says("budget.below_used");
    assert_eq!(world.account("default")["usd_limit"], "1.50");
    world.sup(&["cancel", &run, "--grace", "0s"]).ends(0);
    world.sup(&["wait", &run]).ends(137);
    world.sup(&["budget", "set", "team-a", "250.00", "--per", "month"]).ends(0);
    let names = world.sup(&["--json", "budget", "list"]).ends(0).json();
    let names: Vec<&str> = names.iter().map(|a| a["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["default", "team-a"]);
}

#[test]
fn an_amount_of_another_form_is_refused() {
    let world = World::new();
    for amount in ["1.0000000001", "1,5", "1e3", "nan", "abc", ""] {
        world.sup(&["budget", "set", "default", amount]).ends(4).says("budget.bad_amount");
    }
    world.sup(&["budget", "set", "no spaces", "1"]).ends(4).says("budget.bad_account");
}
