//! System calls the agent may not make: EPERM, or ENOSYS for those in [`ABSENT`].
//!
//! The default already refuses them; the list says why, and a test shows that every known call is in
//! exactly one list.

use super::Group;

/// Answered with ENOSYS, as by a kernel without them, because callers then take another way.
pub const ABSENT: Group = Group {
    reason: "flags are behind a pointer that seccomp cannot read; C libraries fall back to clone",
    calls: &["clone3"],
};

/// Everything that is refused.
pub const REFUSED: &[Group] = &[
    ABSENT,
    Group { reason: "leaves or makes namespaces", calls: &["unshare", "setns", "listns"] },
    Group {
        reason: "changes or explores mounts",
        calls: &[
            "mount",
            "umount2",
            "pivot_root",
            "chroot",
            "open_tree",
            "open_tree_attr",
            "move_mount",
            "fsopen",
            "fsconfig",
            "fsmount",
            "fspick",
            "mount_setattr",
            "statmount",
            "listmount",
        ],
    },
    Group {
        reason: "reads or steers another process; a tracer of pid 1 would stop the sandbox's init",
        calls: &[
            "ptrace",
            "process_vm_readv",
            "process_vm_writev",
            "process_madvise",
            "process_mrelease",
            "pidfd_getfd",
            "kcmp",
        ],
    },
    Group {
        reason: "kernel keyrings are not separated by our namespaces",
        calls: &["add_key", "request_key", "keyctl"],
    },
    Group {
        reason: "programs in the kernel",
        calls: &["bpf", "perf_event_open", "uretprobe", "uprobe"],
    },
    Group {
        reason: "stops the kernel at a chosen place: a tool of exploits",
        calls: &["userfaultfd"],
    },
    Group {
        reason: "does other calls' work out of the filter's sight",
        calls: &["io_uring_setup", "io_uring_enter", "io_uring_register"],
    },
    Group {
        reason: "kernel asynchronous I/O: code that tools do without",
        calls: &[
            "io_setup",
            "io_destroy",
            "io_submit",
            "io_cancel",
            "io_getevents",
            "io_pgetevents",
        ],
    },
    Group {
        reason: "opens files around the mount namespace",
        calls: &["open_by_handle_at", "name_to_handle_at", "lookup_dcookie"],
    },
    Group {
        reason: "watches or answers for whole filesystems",
        calls: &["fanotify_init", "fanotify_mark"],
    },
    Group {
        reason: "changes inode flags that outlive the run; the ioctl of the same use is checked by \
                 the filesystem",
        calls: &["file_setattr"],
    },
    Group {
        reason: "gives pages away that others still change: code behind past exploits",
        calls: &["vmsplice"],
    },
    Group {
        reason: "places memory on nodes: for administrators of large machines",
        calls: &[
            "mbind",
            "set_mempolicy",
            "get_mempolicy",
            "set_mempolicy_home_node",
            "migrate_pages",
            "move_pages",
            "remap_file_pages",
        ],
    },
    Group { reason: "memory that cannot be inspected", calls: &["memfd_secret"] },
    Group {
        reason: "POSIX queues: kernel code that tools do without",
        calls: &[
            "mq_open",
            "mq_unlink",
            "mq_timedsend",
            "mq_timedreceive",
            "mq_notify",
            "mq_getsetattr",
        ],
    },
    Group {
        reason: "changes the machine's clock",
        calls: &["settimeofday", "clock_settime", "adjtimex", "clock_adjtime"],
    },
    Group {
        reason: "changes the machine",
        calls: &[
            "reboot",
            "kexec_load",
            "kexec_file_load",
            "init_module",
            "finit_module",
            "delete_module",
            "swapon",
            "swapoff",
            "acct",
            "quotactl",
            "quotactl_fd",
            "sethostname",
            "setdomainname",
            "vhangup",
            "syslog",
        ],
    },
    Group {
        reason: "touches hardware or segment tables",
        calls: &["iopl", "ioperm", "modify_ldt", "set_thread_area", "get_thread_area"],
    },
    Group {
        reason: "asks security modules, which are the host's",
        calls: &["lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules"],
    },
    Group {
        reason: "obsolete: no kernel of today needs them",
        calls: &[
            "uselib",
            "ustat",
            "sysfs",
            "_sysctl",
            "create_module",
            "get_kernel_syms",
            "query_module",
            "nfsservctl",
            "getpmsg",
            "putpmsg",
            "afs_syscall",
            "tuxcall",
            "security",
            "vserver",
            "epoll_ctl_old",
            "epoll_wait_old",
        ],
    },
];
