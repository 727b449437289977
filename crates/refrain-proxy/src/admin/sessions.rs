//! Sessions of the dashboard, and the tokens of its forms.
//!
//! A session begins with an admin token, has its role, and lives in this process alone: a restart ends all of them.
//! The table is keyed by hashes of the session ids, so no copy of it is worth stealing.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::access::Role;

/// Most sessions at a time; a further one ends the one that was not used for longest.
const SESSIONS_MAX: usize = 64;
/// A session that is not used for this long ends.
const IDLE_MAX: Duration = Duration::from_secs(60 * 60);
/// Every session ends after this time.
const AGE_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// The sessions of one admin listener.
pub(crate) struct Sessions {
    /// Secret of the form tokens, new in each process.
    key: [u8; 32],
    open: Mutex<HashMap<blake3::Hash, Session>>,
}

#[derive(Debug, Clone, Copy)]
struct Session {
    role: Role,
    began: Instant,
    used: Instant,
}

impl Session {
    fn is_over(&self, now: Instant) -> bool {
        now - self.used >= IDLE_MAX || now - self.began >= AGE_MAX
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").finish_non_exhaustive()
    }
}

impl Sessions {
    pub(crate) fn new() -> Self {
        Self {
            key: rand::random(),
            open: Mutex::default(),
        }
    }

    /// Begins a session with this role, and returns its id.
    pub(crate) fn begin(&self, role: Role) -> String {
        let id = random_id();
        let now = Instant::now();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, session| !session.is_over(now));
        if open.len() >= SESSIONS_MAX
            && let Some(oldest) = open.iter().min_by_key(|(_, it)| it.used).map(|(id, _)| *id)
        {
            open.remove(&oldest);
        }
        let session = Session {
            role,
            began: now,
            used: now,
        };
        open.insert(blake3::hash(id.as_bytes()), session);
        id
    }

    /// The role of a session; `None` if it is over or never began. Counts as use of the session.
    pub(crate) fn role(&self, id: &str) -> Option<Role> {
        let (id, now) = (blake3::hash(id.as_bytes()), Instant::now());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let session = open.get_mut(&id)?;
        if session.is_over(now) {
            open.remove(&id);
            return None;
        }
        session.used = now;
        Some(session.role)
    }

    /// The role of a session, as [`role`](Self::role), without counting as use of it.
    pub(crate) fn role_unused(&self, id: &str) -> Option<Role> {
        let (id, now) = (blake3::hash(id.as_bytes()), Instant::now());
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let session = open.get(&id).filter(|session| !session.is_over(now))?;
        Some(session.role)
    }

    /// Ends a session.
    pub(crate) fn end(&self, id: &str) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(&blake3::hash(id.as_bytes()));
    }

    /// The token of the forms that are shown to the holder of this cookie. It does not reveal the cookie.
    pub(crate) fn form_token(&self, cookie: &str) -> String {
        let token = blake3::keyed_hash(&self.key, cookie.as_bytes());
        token.to_hex().to_string()
    }
}

/// A value that nobody can guess.
pub(crate) fn random_id() -> String {
    let id: [u8; 32] = rand::random();
    blake3::Hash::from_bytes(id).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_when_it_is_idle_old_or_closed() {
        let sessions = Sessions::new();
        let id = sessions.begin(Role::Reader);
        assert_eq!(sessions.role(&id), Some(Role::Reader));
        assert_eq!(sessions.role("0"), None);
        tokio::time::advance(IDLE_MAX).await;
        assert_eq!(sessions.role(&id), None, "idle");
        let id = sessions.begin(Role::Resolver);
        tokio::time::advance(IDLE_MAX / 2).await;
        assert_eq!(sessions.role_unused(&id), Some(Role::Resolver));
        tokio::time::advance(IDLE_MAX / 2).await;
        assert_eq!(sessions.role_unused(&id), None, "looking is not using");
        let id = sessions.begin(Role::Resolver);
        for _ in 0..13 {
            tokio::time::advance(IDLE_MAX - Duration::from_secs(1)).await;
            sessions.role(&id);
        }
        assert_eq!(sessions.role(&id), None, "old");
        let id = sessions.begin(Role::Resolver);
        sessions.end(&id);
        assert_eq!(sessions.role(&id), None, "closed");
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_sessions_has_a_limit() {
        let sessions = Sessions::new();
        let mut ids = Vec::new();
        for _ in 0..=SESSIONS_MAX {
            tokio::time::advance(Duration::from_secs(1)).await;
            ids.push(sessions.begin(Role::Reader));
        }
        assert_eq!(sessions.role(&ids[0]), None, "the oldest one ended");
        assert!(ids[1..].iter().all(|id| sessions.role(id).is_some()));
        assert_eq!(sessions.open.lock().unwrap().len(), SESSIONS_MAX);
    }
}
