//! Captured output: pipes are read into files, bounded, and whoever follows is told.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::Interest;
use tokio::sync::watch as change;

use crate::layout::Stream;
use crate::watched::watch;

/// Bytes read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// What both streams of a run share.
#[derive(Debug)]
pub struct Hub {
    stdout: change::Sender<u64>,
    stderr: change::Sender<u64>,
    total: AtomicU64,
    limit: u64,
}

impl Hub {
    /// A hub for streams that together may take `limit` bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        let hub = Hub {
            stdout: change::Sender::new(0),
            stderr: change::Sender::new(0),
            total: AtomicU64::new(0),
            limit,
        };
        Arc::new(hub)
    }

    /// Waits until a stream is longer than `position`.
    pub async fn grows(&self, stream: Stream, position: u64) {
        let mut length = self.length(stream).subscribe();
        if length.wait_for(|now| *now > position).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Bytes that were written, both streams.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    fn length(&self, stream: Stream) -> &change::Sender<u64> {
        match stream {
            Stream::Stdout => &self.stdout,
            Stream::Stderr => &self.stderr,
        }
    }

    /// How much of `wanted` still fits.
    fn admit(&self, wanted: u64) -> u64 {
        let before = self.total.fetch_add(wanted, Ordering::Relaxed);
        self.limit.saturating_sub(before).min(wanted)
    }
}

/// Makes the file of a stream, readable by its owner only.
///
/// # Errors
/// When it cannot be made.
pub fn create(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

/// Why output is not kept any more.
#[derive(Debug)]
pub enum Cut {
    /// It is over the run's limit.
    OverLimit,
    /// It cannot be written.
    Unwritable(io::Error),
}

/// Reads a pipe to its end into a file. `cut` is called once when the limit is passed or the file
/// cannot be written; what comes after it is read and dropped, so that the agent is neither blocked
/// nor ended by a broken pipe before it is killed.
///
/// # Errors
/// When the pipe cannot be read.
pub async fn capture(
    hub: Arc<Hub>,
    stream: Stream,
    pipe: OwnedFd,
    mut file: File,
    cut: impl Fn(Cut) + Send,
) -> io::Result<()> {
    rustix::io::ioctl_fionbio(&pipe, true)?;
    let pipe = watch(pipe, Interest::READABLE)?;
    let mut buffer = vec![0u8; CHUNK_BYTES];
    let mut told = false;
    loop {
        let mut ready = pipe.readable().await?;
        let read = match rustix::io::read(pipe.get_ref().0.as_fd(), &mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(rustix::io::Errno::AGAIN) => {
                ready.clear_ready();
                continue;
            }
            Err(rustix::io::Errno::INTR) => continue,
            // A terminal whose last user is gone reads as EIO.
            Err(rustix::io::Errno::IO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let fits = hub.admit(u64::try_from(read).unwrap_or(u64::MAX));
        if told {
            continue;
        }
        let keep = usize::try_from(fits).unwrap_or(usize::MAX).min(read);
        if let Err(error) = file.write_all(buffer.get(..keep).unwrap_or_default()) {
            told = true;
            cut(Cut::Unwritable(error));
            continue;
        }
        hub.length(stream).send_modify(|length| *length += fits);
        if keep < read {
            told = true;
            cut(Cut::OverLimit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[tokio::test]
    async fn output_over_the_limit_is_cut_exactly_and_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stdout");
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let hub = Hub::new(100_000);
        let told = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&told);
        let file = create(&path).unwrap();
        let task =
            tokio::spawn(capture(Arc::clone(&hub), Stream::Stdout, reader, file, move |cut| {
                assert!(matches!(cut, Cut::OverLimit));
                count.fetch_add(1, Ordering::SeqCst);
            }));
        let feed = tokio::task::spawn_blocking(move || {
            let mut out = File::from(writer);
            for _ in 0..10 {
                out.write_all(&[b'x'; 30_000]).unwrap();
            }
        });
        feed.await.unwrap();
        task.await.unwrap().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 100_000);
        assert_eq!(told.load(Ordering::SeqCst), 1);
        assert_eq!(hub.total(), 300_000);
    }

    #[tokio::test]
    async fn output_that_cannot_be_written_is_told_once_and_read_to_its_end() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let task = tokio::spawn(capture(Hub::new(1 << 30), Stream::Stdout, reader, full, {
            move |cut| tell.send(cut).unwrap()
        }));
        let feed = tokio::task::spawn_blocking(move || {
            let mut out = File::from(writer);
            for _ in 0..10 {
                // A pipe without a reader would fail here.
                out.write_all(&[b'x'; 30_000]).unwrap();
            }
        });
        feed.await.unwrap();
        task.await.unwrap().unwrap();
        let cuts: Vec<Cut> = told.iter().collect();
        let [Cut::Unwritable(error)] = &cuts[..] else { panic!("{cuts:?}") };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
