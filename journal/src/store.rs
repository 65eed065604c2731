//! The redb file: two tables, quick-repair commits, values as opaque bytes.

use std::path::Path;

use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, Durability, ReadableDatabase, ReadableTableMetadata,
    StorageBackend, StorageError, TableDefinition, TableError,
};

use crate::error::JournalError;
use crate::frame::{le16, le32, le64};
use crate::fsio;
use crate::verify::{Damage, DamageKind};

pub(crate) const FILE: &str = "journal.redb";
/// A store that is being made. It gets its name when it is whole, so that a crash in between never
/// leaves half a store under the real name.
pub(crate) const NEW_FILE: &str = "journal.redb.new";
const RECORDS: TableDefinition<u64, &[u8]> = TableDefinition::new("records");
const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");

/// The layout of the store this program writes and the newest it reads.
const FORMAT: u32 = 1;
/// Named features a store may need beyond its format number. None yet; a newer release adds a line
/// to the store, and this list is how an older one says by name what it lacks.
const FEATURES_KNOWN: &[&str] = &[];

/// What the store says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Grows by one each time a person accepts a loss.
    pub(crate) epoch: u64,
    /// The newest record schema in the store.
    pub(crate) schema: u16,
}

impl Meta {
    pub(crate) const NEW: Meta = Meta { epoch: 1, schema: 0 };
}

/// First and last sequence and the number of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) records: u64,
}

/// Sizes for `stats`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) live_bytes: u64,
    pub(crate) overhead_bytes: u64,
}

pub(crate) struct Store {
    db: Database,
}

impl Store {
    /// The backend of normal operation. `create` makes the file.
    pub(crate) fn file_backend(path: &Path, create: bool) -> Result<FileBackend, JournalError> {
        let file = fsio::open_rw(path, create)?;
        FileBackend::new(file).map_err(JournalError::store("open"))
    }

    /// Opens the store on `backend`; an empty one becomes a new store. `check` verifies every page.
    pub(crate) fn open(
        dir: &Path,
        backend: impl StorageBackend,
        cache_bytes: usize,
        check: bool,
    ) -> Result<Self, JournalError> {
        let db = Builder::new()
            .set_cache_size(cache_bytes)
            .set_check_integrity_on_open(check)
            .create_with_backend(backend)
            .map_err(|e| open_error(dir, e))?;
        Ok(Store { db })
    }

    /// Starts a new store at `path`, replacing what is there.
    pub(crate) fn create(dir: &Path, path: &Path, cache: usize) -> Result<Self, JournalError> {
        fsio::remove_if_there(path)?;
        let store = Self::open(dir, Self::file_backend(path, true)?, cache, false)?;
        store.commit(1, &[], Some(Meta::NEW))?;
        Ok(store)
    }

    /// What the store says about itself; `None` when it was never initialised.
    ///
    /// # Errors
    /// `Newer` when this program lacks something the store needs (J8).
    pub(crate) fn meta(&self) -> Result<Option<Meta>, JournalError> {
        let txn = self.db.begin_read().map_err(JournalError::store("read"))?;
        let table = match txn.open_table(META) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(e) => return Err(JournalError::store("read")(e)),
        };
        let get = |key: &str| -> Result<Option<Vec<u8>>, JournalError> {
            let value = table.get(key).map_err(JournalError::store("read"))?;
            Ok(value.map(|v| v.value().to_vec()))
        };
        check_features(get("features")?)?;
        let bad = || JournalError::Damaged(Damage { seq: None, kind: DamageKind::BadMeta });
        let format = fixed::<4>(get("format")?).map(|b| le32(&b, 0)).ok_or_else(bad)?;
        if format != FORMAT {
            return Err(JournalError::Newer {
                found: format,
                supported: FORMAT,
                feature: "store format".to_owned(),
            });
        }
        let epoch = fixed::<8>(get("epoch")?).map(|b| le64(&b, 0)).ok_or_else(bad)?;
        let schema = fixed::<2>(get("schema")?).map(|b| le16(&b, 0)).ok_or_else(bad)?;
        Ok(Some(Meta { epoch, schema }))
    }

    /// Adds `frames` under `first..` and rewrites the meta values, in one durable commit.
    // J1: quick-repair implies two-phase commit: after success the primary slot is valid on disk.
    pub(crate) fn commit(
        &self,
        first: u64,
        frames: &[Vec<u8>],
        meta: Option<Meta>,
    ) -> Result<(), JournalError> {
        let mut txn = self.db.begin_write().map_err(JournalError::store("write"))?;
        txn.set_durability(Durability::Immediate).map_err(JournalError::store("write"))?;
        txn.set_quick_repair(true);
        {
            let mut table = txn.open_table(RECORDS).map_err(JournalError::store("write"))?;
            for (seq, frame) in (first..).zip(frames) {
                let old =
                    table.insert(seq, frame.as_slice()).map_err(JournalError::store("write"))?;
                // J2: append-only; a record that is already there means our head is wrong.
                assert!(old.is_none(), "sequence {seq} was written twice");
            }
        }
        if let Some(meta) = meta {
            let mut table = txn.open_table(META).map_err(JournalError::store("write"))?;
            let mut put = |key: &str, value: &[u8]| -> Result<(), JournalError> {
                table.insert(key, value).map_err(JournalError::store("write"))?;
                Ok(())
            };
            put("format", &FORMAT.to_le_bytes())?;
            put("epoch", &meta.epoch.to_le_bytes())?;
            put("schema", &meta.schema.to_le_bytes())?;
        }
        txn.commit().map_err(JournalError::store("commit"))
    }

    /// First, last and number of records; `None` when there are none.
    pub(crate) fn extent(&self) -> Result<Option<Extent>, JournalError> {
        let txn = self.db.begin_read().map_err(JournalError::store("read"))?;
        let table = match txn.open_table(RECORDS) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(e) => return Err(JournalError::store("read")(e)),
        };
        let records = table.len().map_err(JournalError::store("read"))?;
        let mut range = table.range::<u64>(..).map_err(JournalError::store("read"))?;
        let first = match range.next() {
            Some(entry) => entry.map_err(JournalError::store("read"))?.0.value(),
            None => return Ok(None),
        };
        let last = match range.next_back() {
            Some(entry) => entry.map_err(JournalError::store("read"))?.0.value(),
            None => first,
        };
        Ok(Some(Extent { first, last, records }))
    }

    /// Stored bytes from `from` to `to`, in order, at most about `max_bytes` of them but at least
    /// one record. A short read transaction, so that no reader pins old pages for long.
    pub(crate) fn read(
        &self,
        from: u64,
        to: u64,
        max_bytes: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>, JournalError> {
        let txn = self.db.begin_read().map_err(JournalError::store("read"))?;
        let table = match txn.open_table(RECORDS) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            Err(e) => return Err(JournalError::store("read")(e)),
        };
        let mut out = Vec::new();
        let mut bytes = 0;
        for entry in table.range(from..=to).map_err(JournalError::store("read"))? {
            let (key, value) = entry.map_err(JournalError::store("read"))?;
            bytes += value.value().len();
            out.push((key.value(), value.value().to_vec()));
            if bytes >= max_bytes {
                break;
            }
        }
        Ok(out)
    }

    /// The stored bytes of one record.
    pub(crate) fn read_one(&self, seq: u64) -> Result<Option<Vec<u8>>, JournalError> {
        Ok(self.read(seq, seq, 1)?.pop().map(|(_, stored)| stored))
    }

    /// How many bytes of the file hold data. Walks the tree.
    pub(crate) fn sizes(&self) -> Result<Sizes, JournalError> {
        let txn = self.db.begin_read().map_err(JournalError::store("read"))?;
        let table = match txn.open_table(RECORDS) {
            Ok(table) => table,
            Err(TableError::TableDoesNotExist(_)) => {
                return Ok(Sizes { live_bytes: 0, overhead_bytes: 0 });
            }
            Err(e) => return Err(JournalError::store("read")(e)),
        };
        let stats = table.stats().map_err(JournalError::store("read"))?;
        Ok(Sizes {
            live_bytes: stats.stored_bytes(),
            overhead_bytes: stats.metadata_bytes() + stats.fragmented_bytes(),
        })
    }

    /// Closes the file and reports what dropping would swallow.
    pub(crate) fn close(self) -> Result<(), JournalError> {
        self.db.close().map_err(JournalError::store("close"))
    }
}

fn fixed<const N: usize>(value: Option<Vec<u8>>) -> Option<[u8; N]> {
    value?.try_into().ok()
}

/// J8: refuses by the name of the first feature this program lacks.
fn check_features(lines: Option<Vec<u8>>) -> Result<(), JournalError> {
    let lines = lines.unwrap_or_default();
    let text = String::from_utf8_lossy(&lines);
    match text.lines().find(|line| !FEATURES_KNOWN.contains(line)) {
        None => Ok(()),
        Some(feature) => Err(JournalError::Newer {
            found: FORMAT,
            supported: FORMAT,
            feature: feature.to_owned(),
        }),
    }
}

/// A file that is no store, or a damaged one, is damage (J3), not an input/output error to retry.
fn open_error(dir: &Path, error: DatabaseError) -> JournalError {
    let unreadable = |text: String| {
        JournalError::Damaged(Damage { seq: None, kind: DamageKind::StoreUnreadable(text) })
    };
    match error {
        // The lock file was removed under a living holder: redb's own lock still guards the store.
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
            JournalError::Locked { dir: dir.to_owned(), holder: None }
        }
        DatabaseError::Storage(StorageError::Corrupted(text)) => unreadable(text),
        DatabaseError::Storage(StorageError::Io(e))
            if matches!(
                e.kind(),
                std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof
            ) =>
        {
            unreadable(e.to_string())
        }
        DatabaseError::UpgradeRequired(version) => {
            unreadable(format!("the store has the unknown file format {version}"))
        }
        other => JournalError::store("open")(other),
    }
}
