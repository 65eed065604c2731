//! The system calls that the safe wrappers in use lack. All `unsafe` of this crate is here, one
//! operation a block.
#![expect(
    unsafe_code,
    reason = "system calls without a safe wrapper; each block says why it holds"
)]

pub(crate) mod fd;
pub(crate) mod mount;
pub(crate) mod process;
