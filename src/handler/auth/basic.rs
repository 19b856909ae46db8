//! Passwords (HTTP Basic, RFC 7617).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_passwords::Users;

use super::credentials::Credentials;
use crate::config::BasicAuth;
use crate::exchange::answer;
use crate::exchange::{Exchange, Gone, Outcome, box_cold};
use crate::handler::refuse;
use crate::metrics::end::{End, Failure};

/// Longest wait for a verification.
const PATIENCE: Duration = Duration::from_secs(10);

/// See [`pending_check`](super::pending_check).
pub(super) fn pending_check<'e>(
    exchange: &'e mut Exchange<'_>,
    basic: &'e BasicAuth,
) -> Option<Pin<Box<dyn Future<Output = Option<Outcome>> + 'e>>> {
    let users = basic.users.users();
    let Some(credentials) = Credentials::of(exchange.head, exchange.bytes) else {
        return Some(box_cold(async {
            Some(unauthorized(exchange, basic).await)
        }));
    };
    let passwords = &exchange.context.generation().passwords;
    if passwords.remembers(&users, credentials.pair()) {
        exchange.rare().user = Some(credentials.user().into());
        return None;
    }
    Some(box_cold(verify(exchange, basic, users, credentials)))
}

/// Verifies the password of a client that was not verified recently.
async fn verify(
    exchange: &mut Exchange<'_>,
    basic: &BasicAuth,
    users: Arc<Users>,
    credentials: Credentials,
) -> Option<Outcome> {
    let context = exchange.context;
    let passwords = &context.generation().passwords;
    let Ok(answer) = passwords.verify(users, credentials.pair()) else {
        return Some(refuse(exchange, Failure::AuthBusy).await);
    };
    exchange.set_timeout(PATIENCE);
    let failure = match exchange.while_client_stays(answer).await {
        Ok(Ok(true)) => {
            exchange.rare().user = Some(credentials.user().into());
            return None;
        }
        Ok(Ok(false)) => return Some(unauthorized(exchange, basic).await),
        // An unverified password lets nobody in.
        Ok(Err(_)) => Failure::AuthBusy,
        Err(Gone::Client) => Failure::ClientGone,
        Err(Gone::TimedOut) => context.cut_off().unwrap_or(Failure::AuthBusy),
    };
    Some(refuse(exchange, failure).await)
}

/// Asks the client for user and password.
async fn unauthorized(exchange: &mut Exchange<'_>, basic: &BasicAuth) -> Outcome {
    let end = End::Failure(Failure::Unauthorized);
    let challenge = ("WWW-Authenticate".to_owned(), basic.challenge.clone());
    answer::refuse_with(exchange, end, end.status(), "", &[challenge], None).await
}
