//! Properties of manifests over generated ones, and over damaged fixtures.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise, also in its helpers")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use atenea_core::manifest::{
    Approval, Budget, Ceilings, Command, Deliver, Effect, History, LimitsTable, Llm, Manifest,
    Mount, Network, Overrides, PrivateNetwork, Protocol, Runtime, Secret, Session, Tools,
    UnknownPrice, Workspace, check, explain, narrow, parse_bytes, parse_json, parse_toml,
};
use atenea_core::size::{Count, Cpus, Millis, Size};
use atenea_core::{AccountName, Nanos, Profile};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;

fn size() -> impl Strategy<Value = Size> {
    prop_oneof![1_u64..=4096, 1_u64..=1 << 50].prop_map(|bytes| Size::from_bytes(bytes).unwrap())
}

fn count() -> impl Strategy<Value = Count> {
    prop_oneof![3_u64..=64, 3_u64..=4_000_000].prop_map(|n| Count::new(n).unwrap())
}

fn limits() -> impl Strategy<Value = LimitsTable> {
    let first = (
        of((10_u64..1_000_000).prop_map(|n| Cpus::from_millis(n).unwrap())),
        of(size()),
        of(count()),
        of(size()),
        of(size()),
    );
    let millis =
        prop_oneof![1_u64..=5_000, 1_u64..1 << 40].prop_map(|ms| Millis::from_ms(ms).unwrap());
    let second = (of(millis), of(count()), of(count()), of(size()), of(size()));
    (first, second).prop_map(|(first, second)| {
        let (cpus, memory, pids, disk, output) = first;
        let (duration, tool_calls, exec_seconds, bytes_written, bytes_sent) = second;
        LimitsTable {
            cpus,
            memory,
            pids,
            disk,
            output,
            duration,
            tool_calls,
            exec_seconds,
            bytes_written,
            bytes_sent,
        }
    })
}

/// Any text a program may get: line breaks, quotes, other scripts, control characters; no NUL.
fn text() -> impl Strategy<Value = String> {
    "[^\u{0}]{0,20}"
}

fn command() -> impl Strategy<Value = Command> {
    let argv = ("[^\u{0}]{1,10}", vec(text(), 0..4));
    (argv, of("[a-z]{1,5}(/[a-z]{1,5}){0,2}"), btree_map("[B-Z][A-Z0-9_]{0,8}", text(), 0..4))
        .prop_map(|((program, mut argv), cwd, env)| {
            argv.insert(0, program);
            Command { argv, cwd, env }
        })
}

fn workspace() -> impl Strategy<Value = Workspace> {
    let target = select(vec![None, Some("same".to_owned()), Some("/work".to_owned())]);
    let base = of(select(vec!["working-tree", "HEAD", "HEAD~3", "v1.2", "feature/x"]));
    let files = of(vec("[a-z]{1,5}/\\*\\*", 1..3));
    ("/srv/p/[a-z \n\u{e4}]{1,8}", target, base, any::<bool>(), files).prop_map(
        |(path, target, base, hidden, files)| Workspace {
            path,
            target,
            base: base.map(str::to_owned),
            // Files alone, without a ceiling, is a feature of later versions.
            history: (hidden && files.is_some()).then_some(History::None),
            files,
            include_ignored: Vec::new(),
        },
    )
}

fn budget() -> impl Strategy<Value = Budget> {
    let account = of("[a-z][a-z0-9_.-]{0,10}".prop_map(|name| AccountName::parse(&name).unwrap()));
    let price = of(select(vec![UnknownPrice::Refuse, UnknownPrice::HoldRemainder]));
    (account, 1_u64..1_000_000_000_000, price).prop_map(|(account, nanos, on_unknown_price)| {
        Budget { account, usd: Nanos(nanos), on_unknown_price }
    })
}

fn mounts() -> impl Strategy<Value = Vec<Mount>> {
    vec((any::<bool>(), "[a-z ]{1,6}"), 0..3).prop_map(|list| {
        let place = |(index, (named, name)): (usize, (bool, String))| Mount {
            source: format!("/opt/{index}{name}"),
            target: named.then(|| format!("/data/{index}{name}")),
        };
        list.into_iter().enumerate().map(place).collect()
    })
}

fn without_what_the_profile_cannot_do(mut manifest: Manifest) -> Manifest {
    if manifest.profile() != Profile::WorkspaceWrite {
        manifest.workspace.base = None;
    }
    if manifest.profile() == Profile::TrustedHost {
        let path = manifest.workspace.path;
        manifest.workspace = Workspace::at(path);
        manifest.mounts.clear();
        manifest.runtime.mounts.clear();
    }
    manifest
}

/// Manifests that this version enforces.
fn enforceable() -> impl Strategy<Value = Manifest> {
    let profile = of(select(vec![Profile::Read, Profile::WorkspaceWrite, Profile::TrustedHost]));
    let runtime = (any::<bool>(), any::<bool>());
    (profile, any::<bool>(), command(), workspace(), mounts(), of(budget()), limits(), runtime)
        .prop_map(|(profile, effects, command, workspace, mounts, budget, limits, runtime)| {
            Manifest {
                version: 1,
                profile,
                effects: effects.then(|| Effect::ALL.into()),
                parent: None,
                command,
                workspace,
                mounts,
                runtime: Runtime {
                    image: runtime.0.then(|| "host".to_owned()),
                    mounts: runtime.1.then(|| "/opt-runtime".to_owned()).into_iter().collect(),
                },
                network: Vec::new(),
                private_network: Vec::new(),
                llm: Vec::new(),
                tools: Vec::new(),
                secrets: Vec::new(),
                budget,
                limits: LimitsTable {
                    tool_calls: None,
                    exec_seconds: None,
                    bytes_written: None,
                    bytes_sent: None,
                    ..limits
                },
                session: Session::default(),
                approval: None,
            }
        })
        .prop_map(without_what_the_profile_cannot_do)
}

fn network() -> impl Strategy<Value = Network> {
    let protocol = of(select(vec![Protocol::Https, Protocol::Http, Protocol::Tls, Protocol::Tcp]));
    (
        "(\\*\\.)?[a-z]{1,8}\\.[a-z]{2,5}\\.[a-z]{2}",
        of(vec(1_u16.., 1..3)),
        protocol,
        of(any::<bool>()),
    )
        .prop_map(|(host, ports, protocol, inspect)| Network {
            host,
            ports,
            protocol,
            inspect,
        })
}

/// Manifests with every key of the schema.
fn any_manifest() -> impl Strategy<Value = Manifest> {
    let llm = vec((of(vec("[a-z*-]{1,8}", 1..3)), of(count())), 0..2);
    let tools =
        vec((vec("[a-z_*]{1,8}", 1..3), of(btree_set(select(&Effect::ALL[..]), 1..3))), 0..2);
    let outside = (vec(network(), 0..3), any::<bool>(), llm, tools, any::<bool>());
    (enforceable(), outside, limits(), of("[a-z/]{1,9}"), any::<bool>()).prop_map(
        |(base, (network, private, llm, tools, secret), limits, step, keep)| Manifest {
            network,
            private_network: private.then(private_network).into_iter().collect(),
            llm: llm
                .into_iter()
                .map(|(models, max_output_tokens)| Llm {
                    provider: "p".into(),
                    models,
                    max_output_tokens,
                })
                .collect(),
            tools: tools
                .into_iter()
                .map(|(tools, effects)| Tools {
                    server: "s".into(),
                    tools,
                    effects,
                    repositories: None,
                })
                .collect(),
            secrets: secret
                .then(|| Secret {
                    name: "S".into(),
                    source: "file:/s".into(),
                    deliver: Deliver::Env,
                })
                .into_iter()
                .collect(),
            limits,
            parent: keep.then(|| "r_0123456789ab".to_owned()),
            session: Session { keep: keep.then(|| ".agent/**".to_owned()).into_iter().collect() },
            approval: step.map(|step| Approval { step }),
            ..base
        },
    )
}

fn private_network() -> PrivateNetwork {
    PrivateNetwork {
        host: "db.internal".into(),
        addresses: vec!["10.1.2.0/24".into(), "fd00::/8".into()],
        ports: vec![5432],
        protocol: Protocol::Tcp,
    }
}

/// The same JSON with the keys of every table in the opposite order.
fn reversed(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Object(table) => {
            let sorted: BTreeMap<_, _> = table.iter().collect();
            let parts: Vec<String> = sorted
                .into_iter()
                .rev()
                .map(|(key, value)| format!("{} :\n {}", serde_json::json!(key), reversed(value)))
                .collect();
            format!("{{ {} }}", parts.join(" , "))
        }
        serde_json::Value::Array(items) => {
            format!("[{}]", items.iter().map(reversed).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

fn fixtures() -> Vec<Vec<u8>> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/manifests");
    let folders = ["valid", "invalid"].map(|name| fs::read_dir(root.join(name)).unwrap());
    let mut paths: Vec<PathBuf> =
        folders.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Everything that is done with a manifest of unknown origin; must return, whatever it returns.
fn exercise(bytes: &[u8]) {
    if let Ok(manifest) = parse_bytes(bytes) {
        let _ = explain(&manifest);
        if let Ok(checked) = check(&manifest, &Ceilings::default()) {
            assert!(!checked.argv().is_empty() && checked.cwd().starts_with('/'));
        }
        assert_eq!(parse_json(&manifest.canonical_json()).as_ref(), Ok(&manifest));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_manifest_survives_toml_and_json(manifest in any_manifest()) {
        let toml = toml::to_string(&manifest).unwrap();
        prop_assert_eq!(&parse_toml(&toml).unwrap(), &manifest, "{}", toml);
        let json = serde_json::to_string_pretty(&manifest).unwrap();
        prop_assert_eq!(&parse_json(&json).unwrap(), &manifest, "{}", json);
        prop_assert_eq!(parse_bytes(toml.as_bytes()).unwrap().digest(), manifest.digest());
        prop_assert_eq!(parse_bytes(json.as_bytes()).unwrap().digest(), manifest.digest());
    }

    // S3: the digest depends on what is written, not on how.
    #[test]
    fn a_digest_does_not_depend_on_the_order_of_keys(manifest in any_manifest()) {
        let json = serde_json::to_value(&manifest).unwrap();
        let other = reversed(&json);
        prop_assert_eq!(parse_json(&other).unwrap().digest(), manifest.digest(), "{}", other);
    }

    #[test]
    fn different_manifests_have_different_digests(a in any_manifest(), b in any_manifest()) {
        prop_assert_eq!(a == b, a.digest() == b.digest());
    }

    #[test]
    fn every_generated_manifest_of_this_version_is_accepted(manifest in enforceable()) {
        let checked = check(&manifest, &Ceilings::default()).unwrap();
        prop_assert!(checked.limits().memory_bytes > 0 && checked.limits().pids > 0);
    }

    // S7: whatever the options say, the result grants no more than the manifest.
    #[test]
    fn narrowing_never_raises_a_limit_or_the_budget(
        base in enforceable(), limits in limits(), budget in of(1_u64..1_000_000_000_000)
    ) {
        let flags = Overrides {
            limits, budget: budget.map(Nanos), ..Overrides::default()
        };
        let ceilings = Ceilings::default();
        let before = check(&base, &ceilings).unwrap();
        if let Ok(narrowed) = narrow(&base, flags, &ceilings) {
            let after = check(&narrowed, &ceilings).unwrap();
            let (a, b) = (after.limits(), before.limits());
            prop_assert!(a.cpu_millis <= b.cpu_millis && a.memory_bytes <= b.memory_bytes);
            prop_assert!(a.pids <= b.pids && a.disk_bytes <= b.disk_bytes);
            prop_assert!(a.output_bytes <= b.output_bytes && a.duration_ms <= b.duration_ms);
            let held = |checked: &atenea_core::manifest::Checked| checked.hold().map(|hold| hold.1);
            prop_assert!(held(&after) <= held(&before));
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(bytes in vec(any::<u8>(), 0..300)) {
        exercise(&bytes);
    }

    #[test]
    fn no_damage_to_a_fixture_makes_the_parser_panic(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        with in vec(prop_oneof![any::<u8>(), select(&b"\"'[]{}=.,-0\n#\\"[..])], 0..4),
        drop in 0_usize..6,
    ) {
        let mut bytes = which.get(&fixtures()).clone();
        let start = at.index(bytes.len());
        let end = (start + drop).min(bytes.len());
        bytes.splice(start..end, with);
        exercise(&bytes);
    }
}
