//! The configuration that counts now: read at start, replaced by a reload.

use std::sync::{Arc, PoisonError, RwLock};

use super::Config;

/// Shared by everybody who asks the configuration something. Whoever needs two settings that belong
/// together takes them from one [`InForce::now`].
#[derive(Clone, Debug)]
pub struct InForce {
    config: Arc<RwLock<Arc<Config>>>,
}

impl InForce {
    /// In force from the start.
    pub fn new(config: Config) -> Self {
        InForce { config: Arc::new(RwLock::new(Arc::new(config))) }
    }

    /// What is in force.
    pub fn now(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts `read` in force for everything that starts from now on. What only a start can change
    /// stays as it is; returns the names of such settings that differ.
    pub fn replace(&self, mut read: Config) -> Vec<&'static str> {
        let mut config = self.config.write().unwrap_or_else(PoisonError::into_inner);
        let mut kept = Vec::new();
        let old = &**config;
        // The probe has tried this engine and no other.
        if read.sandbox.bubblewrap.path != old.sandbox.bubblewrap.path {
            read.sandbox.bubblewrap.path.clone_from(&old.sandbox.bubblewrap.path);
            kept.push("sandbox.bubblewrap.path");
        }
        if read.journal != old.journal {
            read.journal = old.journal;
            kept.push("journal");
        }
        *config = Arc::new(read);
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_changes_what_is_asked_later_and_nothing_that_was_taken_before() {
        let in_force = InForce::new(Config::default());
        let before = in_force.now();
        let mut read = Config::default();
        read.sandbox.max_concurrent = 3;
        read.journal.snapshot_every = 7;
        assert_eq!(in_force.replace(read), ["journal"]);
        assert_eq!(in_force.now().sandbox.max_concurrent, 3);
        assert_eq!(in_force.now().journal, before.journal);
        assert_eq!(before.sandbox.max_concurrent, Config::default().sandbox.max_concurrent);
    }
}
