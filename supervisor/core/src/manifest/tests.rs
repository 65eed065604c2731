//! Stages of a manifest's life, one by one. The table of refusals is in
//! `tests/manifest_fixtures.rs`.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::size::{Count, Cpus, Millis, Size};
use crate::{Code, Generation, Limits, Nanos, Profile, RunId};

const BASE: &str = r#"
version = 1
profile = "workspace-write"
effects = ["read", "write", "process", "network"]
[command]
argv = ["agent", "-p", "x"]
cwd = "sub"
env = { CI = "1" }
[workspace]
path = "/home/me/project"
target = "/repo"
[[mounts]]
source = "/opt/models"
[budget]
usd = "2"
[limits]
memory = "1GiB"
"#;

fn base() -> Manifest {
    parse_toml(BASE).unwrap()
}

fn code(result: Result<Manifest, crate::Refusal>) -> Code {
    result.unwrap_err().code
}

fn narrowed(change: impl FnOnce(&mut Overrides)) -> Result<Manifest, crate::Refusal> {
    let mut flags = Overrides::default();
    change(&mut flags);
    narrow(&base(), flags, &Ceilings::default())
}

fn flags(argv: &[&str]) -> Overrides {
    Overrides {
        argv: Some(argv.iter().map(|&word| word.to_owned()).collect()),
        workspace: Some("/home/me/project".into()),
        ..Overrides::default()
    }
}

#[test]
fn a_checked_manifest_has_every_limit_and_keeps_its_digest() {
    let manifest = base();
    let checked = check(&manifest, &Ceilings::default()).unwrap();
    let expected = Limits { memory_bytes: 1 << 30, ..Limits::default() };
    assert_eq!(checked.limits(), &expected);
    // S3: defaults are not part of what was approved.
    assert_eq!(checked.digest(), manifest.digest());
    assert_eq!((checked.program(), checked.cwd().as_str()), ("agent", "/repo/sub"));
    assert_eq!(checked.hold().unwrap().0.as_str(), DEFAULT_ACCOUNT);
    assert_eq!(checked.hold().unwrap().1, Nanos(2_000_000_000));
    assert_eq!(checked.on_unknown_price(), UnknownPrice::Refuse);
    assert_eq!(checked.grants(), Grants { mounts: 1, env: 1, ..Grants::default() });
    assert_eq!(checked.label(), "workspace-write");
    // B7: nothing here costs money.
    assert!(!checked.is_priced());
}

#[test]
fn a_default_above_its_ceiling_is_lowered_and_a_written_limit_is_refused() {
    let max = MaxLimits { memory_bytes: Some(1 << 20), pids: Some(8), ..MaxLimits::default() };
    let ceilings = Ceilings { defaults: Limits::default(), max };
    let refusal = check(&base(), &ceilings).unwrap_err();
    assert_eq!(refusal.code, Code::ManifestAboveCeiling);
    assert!(refusal.cause.contains("1GiB") && refusal.cause.contains("1MiB"), "{refusal}");
    let mut manifest = base();
    manifest.limits.memory = Size::from_bytes(1 << 20);
    assert_eq!(check(&manifest, &ceilings).unwrap().limits().pids, 8);
}

#[test]
fn a_manifest_larger_than_its_bound_is_refused_before_it_is_parsed() {
    let text = format!("{BASE}# {}\n", "x".repeat(tree::DOCUMENT_BYTES_MAX));
    assert_eq!(code(parse_toml(&text)), Code::ManifestTooLarge);
    assert_eq!(code(parse_json(&text)), Code::ManifestTooLarge);
    assert_eq!(code(parse_bytes(text.as_bytes())), Code::ManifestTooLarge);
}

#[test]
fn bytes_that_are_no_text_or_no_table_are_unreadable() {
    for bytes in [&b"\xff\xfe"[..], b"[]", b"\"x\"", b"{", b"{\"version\":1,}", b"\x00"] {
        assert_eq!(code(parse_bytes(bytes)), Code::ManifestUnreadable, "{bytes:?}");
    }
    // An empty file is a table without a version.
    assert_eq!(code(parse_bytes(b"")), Code::ManifestUnknownVersion);
    assert_eq!(code(parse_json("null")), Code::ManifestUnreadable);
}

#[test]
fn a_json_key_written_twice_is_refused_at_every_level() {
    for text in [
        r#"{"version":1,"version":1}"#,
        r#"{"version":1,"command":{"argv":["a"],"env":{"A":"1","A":"2"}}}"#,
    ] {
        let refusal = parse_json(text).unwrap_err();
        assert_eq!(refusal.code, Code::ManifestUnreadable);
        assert!(refusal.cause.contains("twice"), "{refusal}");
    }
}

#[test]
fn null_is_not_another_way_to_leave_a_key_out() {
    let text = r#"{"version":1,"profile":null,"command":{"argv":["a"]},"workspace":{"path":"/w"}}"#;
    let refusal = parse_json(text).unwrap_err();
    assert_eq!(refusal.code, Code::ManifestBadValue);
    assert!(refusal.cause.starts_with("profile: "), "{refusal}");
}

#[test]
fn a_document_nested_too_deeply_is_refused() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(
        code(parse_json(&format!("{{\"version\":1,\"x\":{deep}}}"))),
        Code::ManifestUnreadable
    );
    assert_eq!(code(parse_toml(&format!("version = 1\nx = {deep}"))), Code::ManifestUnreadable);
}

// E4: refusals are journalled, so none may repeat an argument or the value of a variable.
#[test]
fn no_refusal_repeats_a_value_of_the_command() {
    for text in [
        "version = 1\ncommand = \"hunter2\"",
        "version = 1\n[command]\nargv = \"hunter2\"",
        "version = 1\n[command]\nargv = [\"a\"]\nenv = \"hunter2\"",
        "version = 1\n[command]\nargv = [\"a\"]\nenv = { ATENEA_X = \"hunter2\" }",
        "version = 1\n[command]\nargv = [\"a\", \"hunter2\\u0000\"]",
        "version = 1\n[command]\nargv = [\"hunter2\" \"x\"]",
    ] {
        let refusal = parse_toml(text).unwrap_err();
        assert!(!refusal.to_string().contains("hunter2"), "{refusal}");
    }
}

#[test]
fn a_refusal_shows_no_control_character_of_the_author() {
    let text = "version = 1\n\"a\\u001b[2Jb\" = 1\n[command]\nargv = [\"a\"]";
    let refusal = parse_toml(text).unwrap_err();
    assert_eq!(refusal.code, Code::ManifestUnknownKey);
    assert!(!refusal.to_string().contains('\u{1b}'), "{refusal:?}");
}

#[test]
fn options_alone_make_a_manifest_with_the_same_rules() {
    let manifest = from_flags(flags(&["true"])).unwrap();
    assert_eq!(manifest.profile(), Profile::Read);
    assert!(check(&manifest, &Ceilings::default()).unwrap().hold().is_none());
    assert_eq!(code(from_flags(flags(&[]))), Code::ManifestNoCommand);
    assert_eq!(code(from_flags(Overrides::default())), Code::ManifestNoCommand);
    let no_workspace = Overrides { workspace: None, ..flags(&["true"]) };
    assert_eq!(code(from_flags(no_workspace)), Code::ManifestBadValue);
    let env = BTreeMap::from([("ATENEA_TOKEN".to_owned(), "x".to_owned())]);
    assert_eq!(code(from_flags(Overrides { env, ..flags(&["true"]) })), Code::ManifestBadValue);
    let network = vec![parse_allow("api.example.org:8443/tls").unwrap()];
    let manifest = from_flags(Overrides { network, ..flags(&["true"]) }).unwrap();
    let refusal = check(&manifest, &Ceilings::default()).unwrap_err();
    assert_eq!(refusal.code, Code::ManifestUnsupportedFeature);
}

#[test]
fn no_option_leaves_an_approved_manifest_as_it_is() {
    // S3: the digest that was approved is the digest that runs.
    assert_eq!(narrowed(|_| ()).unwrap().digest(), base().digest());
    let repeated = narrowed(|flags| {
        flags.argv = Some(base().command.argv);
        flags.workspace = Some("/home/me/project".into());
        flags.env = base().command.env;
        flags.mounts = vec![parse_mount("/opt/models:/opt/models").unwrap()];
        flags.profile = Some(Profile::WorkspaceWrite);
    });
    assert_eq!(repeated.unwrap(), base());
}

#[test]
fn options_may_lower_what_is_approved() {
    let lowered = narrowed(|flags| {
        flags.profile = Some(Profile::Read);
        flags.budget = Some(Nanos(1_000_000_000));
        flags.limits.memory = Size::from_bytes(1 << 20);
        flags.limits.duration = Millis::from_ms(1_000);
    })
    .unwrap();
    assert_eq!(lowered.profile(), Profile::Read);
    assert_eq!(lowered.effects(), BTreeSet::from([Effect::Read, Effect::Process, Effect::Network]));
    assert_eq!(lowered.budget.as_ref().unwrap().usd, Nanos(1_000_000_000));
    assert_eq!(lowered.limits.memory, Size::from_bytes(1 << 20));
    assert_ne!(lowered.digest(), base().digest());
    let effects = BTreeSet::from([Effect::Read, Effect::Write, Effect::Process]);
    let fewer = narrowed(|flags| flags.effects = Some(effects.clone())).unwrap();
    assert_eq!(fewer.effects, Some(effects));
}

type Change = fn(&mut Overrides);

// S7: nothing outside of the approved file widens what it grants.
#[test]
fn no_option_widens_what_is_approved() {
    let widenings: [(&str, Change); 15] = [
        ("--profile", |f| f.profile = Some(Profile::TrustedHost)),
        ("effects", |f| f.effects = Some(BTreeSet::from(Effect::ALL))),
        ("--workspace", |f| f.workspace = Some("/home/me".into())),
        ("command", |f| f.argv = Some(vec!["sh".into()])),
        ("--env", |f| f.env = BTreeMap::from([("B".into(), "1".into())])),
        ("--env", |f| f.env = BTreeMap::from([("CI".into(), "2".into())])),
        ("--mount", |f| f.mounts = vec![parse_mount("/opt").unwrap()]),
        ("--mount", |f| f.mounts = vec![parse_mount("/opt/models:/x").unwrap()]),
        ("--allow", |f| f.network = vec![parse_allow("a.example").unwrap()]),
        ("--parent", |f| f.parent = Some("r_0123456789ab".into())),
        ("--budget", |f| f.budget = Some(Nanos(2_000_000_001))),
        ("--memory", |f| f.limits.memory = Size::from_bytes((1 << 30) + 1)),
        // Not named in the manifest: the configuration's default is what was granted.
        ("--pids", |f| f.limits.pids = Count::new(257)),
        ("--cpus", |f| f.limits.cpus = Cpus::from_millis(2_001)),
        ("--timeout", |f| f.limits.duration = Millis::from_ms(1_800_001)),
    ];
    for (option, change) in widenings {
        let refusal = narrowed(change).unwrap_err();
        assert_eq!(refusal.code, Code::ManifestWiderThanApproved, "{option}: {refusal}");
        assert!(refusal.cause.contains(option), "{option}: {refusal}");
        assert!(!refusal.cause.contains("\"2\""), "E4: {refusal}");
    }
}

#[test]
fn a_budget_cannot_be_added_to_a_manifest_without_one() {
    let mut manifest = base();
    manifest.budget = None;
    let asked = Overrides { budget: Some(Nanos(1)), ..Overrides::default() };
    assert_eq!(
        code(narrow(&manifest, asked, &Ceilings::default())),
        Code::ManifestWiderThanApproved
    );
}

#[test]
fn an_enforced_profile_is_below_trusted_host_and_never_above() {
    let mut manifest = base();
    manifest.effects = None;
    for (approved, asked, fits) in [
        (Profile::Read, Profile::TrustedHost, false),
        (Profile::Read, Profile::WorkspaceWrite, false),
        (Profile::TrustedHost, Profile::Read, true),
    ] {
        manifest.profile = Some(approved);
        let flags = Overrides { profile: Some(asked), ..Overrides::default() };
        let result = narrow(&manifest, flags, &Ceilings::default());
        assert_eq!(result.is_ok(), fits, "S2: {approved} to {asked}");
    }
}

#[test]
fn option_texts_are_parsed_or_refused() {
    let allow = parse_allow("*.example.org:8080/http").unwrap();
    assert_eq!((allow.host.as_str(), allow.ports), ("*.example.org", Some(vec![8080])));
    assert_eq!(allow.protocol, Some(Protocol::Http));
    for bad in ["a:0", "a:x", "a:65536", "a/udp", "a/", "a:443/"] {
        assert_eq!(parse_allow(bad).unwrap_err().code, Code::ManifestBadValue, "{bad}");
    }
    let mount = parse_mount("/opt/a:b:/data").unwrap();
    assert_eq!((mount.source.as_str(), mount.target()), ("/opt/a:b", "/data"));
    assert_eq!(parse_mount("/opt/a:b").unwrap().target(), "/opt/a:b");
    for bad in ["", "opt", ":/data", "/opt/../etc"] {
        assert_eq!(parse_mount(bad).unwrap_err().code, Code::ManifestBadValue, "{bad}");
    }
    assert_eq!(parse_env("A=b=c").unwrap(), ("A".into(), Some("b=c".into())));
    assert_eq!(parse_env("A").unwrap(), ("A".into(), None));
    assert_eq!(parse_env("=x").unwrap_err().code, Code::ManifestBadValue);
}

#[test]
fn overrides_survive_json_and_refuse_unknown_keys() {
    let flags = Overrides { budget: Some(Nanos(1_500_000_000)), ..flags(&["true"]) };
    let text = serde_json::to_string(&flags).unwrap();
    assert!(text.contains("\"budget\":\"1.50\""), "{text}");
    assert_eq!(serde_json::from_str::<Overrides>(&text).unwrap(), flags);
    assert!(serde_json::from_str::<Overrides>(r#"{"trusted":true}"#).is_err());
}

// S3: the sealed manifest binds the approved one to one run; any other run has another digest.
#[test]
fn a_sealed_manifest_has_a_digest_of_its_own_for_each_run() {
    let checked = check(&base(), &Ceilings::default()).unwrap();
    let seal = |bits, generation, hold: Option<&str>| {
        let run = RunId::from_random(bits);
        Sealed::new(&checked, run, None, Generation(generation), hold.map(str::to_owned))
    };
    let sealed = seal(1, 1, Some("h_1"));
    assert_eq!(sealed.manifest().digest(), checked.digest());
    let digests: BTreeSet<_> =
        [&sealed, &seal(2, 1, Some("h_1")), &seal(1, 2, Some("h_1")), &seal(1, 1, None)]
            .map(Sealed::digest)
            .into();
    assert_eq!(digests.len(), 4);
    assert!(!digests.contains(&checked.digest()));
    let read: Sealed = serde_json::from_str(&sealed.canonical_json()).unwrap();
    assert_eq!((read.digest(), read), (sealed.digest(), sealed));
}

#[test]
fn explanations_name_every_grant_and_no_value_of_a_variable() {
    let text = format!(
        "{}\n{}",
        BASE.replace("CI = \"1\"", "TOKEN = \"hunter2\""),
        "[[secrets]]\nname = \"NPM\"\nsource = \"file:/x\"\ndeliver = \"env\"\n\
         [[network]]\nhost = \"*.example.org\"\ninspect = true\n\
         [session]\nkeep = [\".agent/**\"]"
    );
    let lines = explain(&parse_toml(&text).unwrap()).join("\n");
    for word in [
        "workspace-write",
        "\"agent\"",
        "\"sub\"",
        "\"TOKEN\"",
        "/home/me/project",
        "/repo",
        "/opt/models",
        "\"NPM\"",
        "sub-domain of \"example.org\"",
        "inspected",
        "$2 of the account",
        "memory 1GiB",
        ".agent/**",
    ] {
        assert!(lines.contains(word), "{word} is not in\n{lines}");
    }
    assert!(!lines.contains("hunter2"), "E4: {lines}");
    let mut trusted = base();
    trusted.profile = Some(Profile::TrustedHost);
    let lines = explain(&trusted).join("\n");
    assert!(lines.contains("NOT SANDBOXED"), "{lines}");
    assert!(!lines.contains("read-only") && !lines.contains("no network"), "{lines}");
}
