//! Descriptors that the runtime watches.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A value that owns its descriptor and never changes or closes it while it lives.
pub trait OwnsDescriptor: 'static {
    /// The descriptor.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

impl OwnsDescriptor for OwnedFd {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

/// What the runtime gets: it knows descriptors only as numbers.
#[derive(Debug)]
pub struct Holder<T>(pub T);

impl<T: OwnsDescriptor> AsRawFd for Holder<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.descriptor().as_raw_fd()
    }
}

/// Lets the runtime watch a descriptor. Must be called inside the runtime.
///
/// # Errors
/// When the kernel cannot poll it.
pub fn watch<T: OwnsDescriptor>(inner: T, interest: Interest) -> io::Result<AsyncFd<Holder<T>>> {
    #[expect(
        deprecated,
        reason = "the replacement is unsafe because any `AsRawFd` may lie; `Holder` owns its \
                  descriptor for as long as it is registered, which is what it asks for"
    )]
    AsyncFd::with_interest(Holder(inner), interest)
}
