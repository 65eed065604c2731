//! Whether a run's memory can hold what its filesystems in memory may grow to.

use atenea_core::{Code, Limits, Refusal};

use super::{Mount, MountKind};

/// Memory charged for one empty file of a tmpfs, bytes (measured 0.9 KiB).
const INODE_BYTES: u64 = 1024;
/// Bytes of tmpfs per inode: a checkout of small files fits, an inode bomb does not.
const BYTES_PER_INODE: u64 = 16 << 10;

/// Sizes of the writable filesystems in memory, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmpfsSizes {
    /// `/tmp`.
    pub tmp: u64,
    /// HOME.
    pub home: u64,
    /// `/dev/shm`.
    pub shm: u64,
}

impl TmpfsSizes {
    /// Sizes that fit the limits: together about five eighths of the memory, none above the disk
    /// limit.
    pub fn for_limits(limits: &Limits) -> Self {
        let share = |part: u64| (limits.memory_bytes / part).min(limits.disk_bytes).max(4096);
        TmpfsSizes { tmp: share(4), home: share(4), shm: share(8) }
    }
}

/// Inodes of a tmpfs of this size.
pub(super) fn inodes(size: u64) -> u64 {
    (size / BYTES_PER_INODE).clamp(256, 1 << 20)
}

/// The most memory that the mounts can take: content and inodes of each tmpfs.
pub fn tmpfs_bytes(mounts: &[Mount]) -> u64 {
    mounts
        .iter()
        .map(|mount| match mount.what {
            MountKind::Tmpfs { size, nr_inodes, .. } => {
                size.saturating_add(nr_inodes.saturating_mul(INODE_BYTES))
            }
            MountKind::Bind { .. }
            | MountKind::Proc
            | MountKind::Dev
            | MountKind::Symlink { .. }
            | MountKind::File { .. }
            | MountKind::Dir
            | MountKind::Seal => 0,
        })
        .fold(0, u64::saturating_add)
}

/// Refuses a plan whose filesystems in memory could fill the memory of the run: the run would be
/// killed for memory where it should get "no space left".
///
/// # Errors
/// `manifest.bad_limit` with both numbers.
pub fn check_memory(mounts: &[Mount], memory_bytes: u64) -> Result<(), Refusal> {
    let needed = tmpfs_bytes(mounts);
    if needed < memory_bytes {
        return Ok(());
    }
    Err(Refusal::new(
        Code::ManifestBadLimit,
        format!(
            "limits.memory is {memory_bytes} bytes, but the filesystems in memory may take {needed}"
        ),
    )
    .with_help("raise limits.memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_sizes_leave_memory_for_the_agent() {
        let limits = Limits::default();
        let sizes = TmpfsSizes::for_limits(&limits);
        assert!(sizes.tmp + sizes.home + sizes.shm < limits.memory_bytes / 4 * 3);
    }

    #[test]
    fn memory_that_the_tmpfs_could_fill_is_refused_with_both_numbers() {
        let tmpfs = MountKind::Tmpfs { size: 1000, nr_inodes: 1, mode: 0o755, of_agent: true };
        let mounts = [Mount { target: "/tmp".into(), what: tmpfs }];
        check_memory(&mounts, 2025).unwrap();
        let refusal = check_memory(&mounts, 2024).unwrap_err();
        assert_eq!(refusal.code, Code::ManifestBadLimit);
        assert!(refusal.cause.contains("2024"), "{}", refusal.cause);
    }
}
