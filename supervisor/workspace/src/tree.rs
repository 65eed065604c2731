//! Git trees computed from a list of files.

use std::collections::BTreeMap;

use atenea_core::{Code, Refusal};
use bstr::ByteSlice;
use gix_hash::ObjectId;

use crate::ids::id_of;
use crate::path::{join, shown};

/// What git knows about a file besides its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Leaf {
    pub(crate) mode: Mode,
    pub(crate) id: ObjectId,
}

/// The modes git knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    File,
    Executable,
    Link,
    Gitlink,
    /// Only for the identity of plain directories, whose empty directories count.
    EmptyDir,
}

impl Mode {
    pub(crate) fn octal(self) -> &'static str {
        match self {
            Mode::File => "100644",
            Mode::Executable => "100755",
            Mode::Link => "120000",
            Mode::Gitlink => "160000",
            Mode::EmptyDir => "40000",
        }
    }

    /// Git's modes, as written in trees and the index; old trees hold 100664.
    pub(crate) fn parse(text: &[u8]) -> Option<Mode> {
        match text {
            b"100644" | b"100664" => Some(Mode::File),
            b"100755" => Some(Mode::Executable),
            b"120000" => Some(Mode::Link),
            b"160000" => Some(Mode::Gitlink),
            _ => None,
        }
    }

    pub(crate) fn of_file(permissions: u32) -> Mode {
        if permissions & 0o100 == 0 { Mode::File } else { Mode::Executable }
    }
}

/// Takes the trees that were made, innermost first.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(ObjectId, Vec<u8>) -> Result<(), Refusal>;

/// Forgets the trees.
pub(crate) fn no_sink(_: ObjectId, _: Vec<u8>) -> Result<(), Refusal> {
    Ok(())
}

/// The tree id of a map of files.
pub(crate) fn tree_of(
    files: &BTreeMap<Vec<u8>, Leaf>,
    sink: Sink<'_>,
) -> Result<ObjectId, Refusal> {
    let refs: Vec<(&[u8], Leaf)> = files.iter().map(|(p, l)| (p.as_slice(), *l)).collect();
    build(&refs, sink)
}

/// The tree id of files sorted by path.
pub(crate) fn build(files: &[(&[u8], Leaf)], sink: Sink<'_>) -> Result<ObjectId, Refusal> {
    debug_assert!(files.is_sorted_by(|a, b| a.0 < b.0));
    level(files, b"", sink)
}

fn level(files: &[(&[u8], Leaf)], prefix: &[u8], sink: Sink<'_>) -> Result<ObjectId, Refusal> {
    // Git sorts a directory as if its name ended with a slash.
    let mut entries: BTreeMap<Vec<u8>, (&'static str, &[u8], ObjectId)> = BTreeMap::new();
    let skip = if prefix.is_empty() { 0 } else { prefix.len() + 1 };
    let mut rest = files;
    while let Some((path, leaf)) = rest.first() {
        let tail = &path[skip..];
        let Some(slash) = tail.find_byte(b'/') else {
            let directory = leaf.mode == Mode::EmptyDir;
            let key = if directory { [tail, b"/"].concat() } else { tail.to_vec() };
            entries.insert(key, (leaf.mode.octal(), tail, leaf.id));
            rest = &rest[1..];
            continue;
        };
        let name = &tail[..slash];
        let whole = &path[..skip + slash + 1];
        let count = rest.partition_point(|(other, _)| other.starts_with(whole) || *other < whole);
        let id = level(&rest[..count], &join(prefix, name), sink)?;
        entries.insert([name, b"/"].concat(), ("40000", name, id));
        rest = &rest[count..];
    }
    let mut data = Vec::new();
    for (key, (mode, name, id)) in &entries {
        if key.last() == Some(&b'/') && entries.contains_key(*name) {
            let path = join(prefix, name);
            return Err(Refusal::new(
                Code::ExportBadPath,
                format!("{} is a file and a directory at once", shown(&path)),
            ));
        }
        data.extend_from_slice(mode.as_bytes());
        data.push(b' ');
        data.extend_from_slice(name);
        data.push(0);
        data.extend_from_slice(id.as_slice());
    }
    let id = id_of(gix_object::Kind::Tree, &data)?;
    sink(id, data)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(mode: Mode) -> Leaf {
        Leaf { mode, id: id_of(gix_object::Kind::Blob, b"").unwrap() }
    }

    #[test]
    fn an_empty_list_is_the_empty_tree() {
        let id = build(&[], &mut no_sink).unwrap();
        assert_eq!(id.to_string(), "4b825dc642cb6eb9a060e54bf8d69288fbee4904");
    }

    #[test]
    fn names_that_sort_around_a_slash_keep_their_directories_whole() {
        let files: Vec<(&[u8], Leaf)> = [&b"a-b"[..], b"a.c", b"a/x", b"a/y/z", b"a0", b"b"]
            .into_iter()
            .map(|path| (path, leaf(Mode::File)))
            .collect();
        let mut made = Vec::new();
        let mut sink = |_, data: Vec<u8>| {
            made.push(data);
            Ok(())
        };
        build(&files, &mut sink).unwrap();
        let names: Vec<usize> =
            made.iter().map(|data| data.find_iter(b"100644 ").count() * 10).collect();
        assert_eq!(names, [10, 10, 40], "z alone, x beside y, and four files at the root");
        let root = made.last().unwrap();
        let at = |needle: &[u8]| root.find(needle).unwrap();
        assert!(at(b"100644 a-b\0") < at(b"100644 a.c\0"));
        assert!(at(b"100644 a.c\0") < at(b"40000 a\0") && at(b"40000 a\0") < at(b"100644 a0\0"));
    }

    #[test]
    fn a_name_that_is_file_and_directory_is_refused() {
        let files: Vec<(&[u8], Leaf)> = vec![(b"a", leaf(Mode::File)), (b"a/b", leaf(Mode::File))];
        assert_eq!(build(&files, &mut no_sink).unwrap_err().code, Code::ExportBadPath);
    }
}
