//! The `/etc` inside: made by us, never the host's.

use super::{AGENT_NAME, HOME, INSIDE_ID, Mount, MountKind};

/// Files of `/etc`, below the directory itself.
pub(super) fn files(hostname: &str) -> Vec<Mount> {
    let file = |name: &str, contents: String| Mount {
        target: format!("/etc/{name}").into(),
        what: MountKind::File { contents: contents.into(), mode: 0o444 },
    };
    vec![
        file(
            "passwd",
            format!(
                "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
                 {AGENT_NAME}:x:{INSIDE_ID}:{INSIDE_ID}:{AGENT_NAME}:{HOME}:/bin/sh\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        file(
            "group",
            format!("root:x:0:\ntty:x:5:\n{AGENT_NAME}:x:{INSIDE_ID}:\nnogroup:x:65534:\n"),
        ),
        file("hostname", format!("{hostname}\n")),
        file("hosts", format!("127.0.0.1 localhost {hostname}\n::1 localhost\n")),
        file("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n".to_owned()),
        file(
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n".to_owned(),
        ),
        // Files of the workspace belong to whoever the host says; without this, git refuses them.
        file("gitconfig", "[safe]\n\tdirectory = *\n".to_owned()),
    ]
}
