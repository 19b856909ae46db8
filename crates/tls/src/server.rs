//! The configuration of rustls for connections from clients.

use std::sync::Arc;

use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{Error, KeyLog, ServerConfig};

use crate::policy::{Policy, Preset};
use crate::resolver::Served;
use crate::tickets::TicketKeys;
use crate::trust::ClientAuth;

/// The most that a client sends before the end of the handshake, in bytes.
const EARLY_DATA_LEN: u32 = 16 << 10;

/// Sessions that are kept for clients that do so.
const EARLY_DATA_SESSIONS: usize = 32_768;

/// How connections from clients are secured.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// Versions, cipher suites and groups.
    pub policy: Policy,
    /// The certificates. They can be replaced while connections are served.
    pub certificates: Arc<Served>,
    /// Protocols in the order of preference, such as `h2` and `http/1.1`. A handshake without a
    /// common protocol fails with `no_application_protocol`. If this list is empty, or the
    /// client sends none, no protocol is negotiated.
    pub alpn: Vec<Vec<u8>>,
    /// Whether clients show a certificate.
    pub client_auth: ClientAuth,
    /// The keys of tickets. Without any no session is resumed: nothing is kept on this side.
    pub tickets: Option<Arc<TicketKeys>>,
    /// Clients that come again may send their first request before the end of the handshake
    /// (0-RTT). Sessions are kept in memory then, each for one use, instead of tickets.
    pub early_data: bool,
    /// A log of the secrets of connections. Safety: its readers can decrypt all traffic.
    pub key_log: Option<Arc<dyn KeyLog>>,
}

/// The configuration that all connections of a listener share.
///
/// # Errors
/// Client certificates are verified, but no authority is trusted.
pub fn server_config(settings: ServerSettings) -> Result<Arc<ServerConfig>, Error> {
    let provider = Arc::new(settings.policy.provider());
    let verifier = settings.client_auth.verifier(&provider);
    let verifier = verifier.map_err(|it| Error::General(it.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&settings.policy.protocol_versions())?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(settings.certificates);
    config.ignore_client_order = settings.policy.has_own_order();
    config.alpn_protocols = settings.alpn;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    match settings.tickets {
        // Each session is removed when it is used: a replayed request finds none.
        _ if settings.early_data => {
            config.max_early_data_size = EARLY_DATA_LEN;
            // Answers go before the end of the handshake, too.
            config.send_half_rtt_data = true;
            config.session_storage = ServerSessionMemoryCache::new(EARLY_DATA_SESSIONS);
        }
        Some(keys) => config.ticketer = keys.bound_to(settings.client_auth.context()),
        None => config.send_tls13_tickets = 0,
    }
    if let Some(key_log) = settings.key_log {
        config.key_log = key_log;
    }
    Ok(Arc::new(config))
}

/// The configuration of one handshake. It shows this certificate to every client, negotiates
/// this protocol (ALPN), and issues no ticket.
///
/// # Errors
/// None that is known.
pub fn handshake_config(
    certificate: Arc<CertifiedKey>,
    protocol: &[u8],
) -> Result<Arc<ServerConfig>, Error> {
    let policy = Policy::preset(Preset::Intermediate);
    let mut config = ServerConfig::builder_with_provider(Arc::new(policy.provider()))
        .with_protocol_versions(&policy.protocol_versions())?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certificate)));
    config.alpn_protocols = vec![protocol.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
