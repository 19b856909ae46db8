//! One question to a DNS server, over its own TCP connection (RFC 7766).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hickory_proto::op::{Message, MessageType, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType, TSigner};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::clock::Clock;

/// How long an answer may take, with the connection.
const DEADLINE: Duration = Duration::from_secs(10);

/// A server of DNS.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    pub(super) clock: Arc<dyn Clock>,
}

impl Server {
    /// Asks for records.
    ///
    /// # Errors
    /// There is no answer. An answer without records is no error.
    pub(super) async fn query(&self, name: &Name, kind: RecordType) -> Result<Message, String> {
        let mut message = Message::query();
        message.metadata.recursion_desired = false;
        message.add_query(Query::query(name.clone(), kind));
        let bytes = self.exchange(&message).await?;
        self.parse(&bytes, &message)
    }

    /// Sends an update that is signed, and verifies the signature of the answer.
    ///
    /// # Errors
    /// No answer comes, or one of an error.
    pub(super) async fn update(&self, mut message: Message, key: &TSigner) -> Result<(), String> {
        let now = self.clock.now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.unwrap_or_default().as_secs();
        let verifier = message.finalize(key, now).map_err(|it| it.to_string())?;
        let bytes = self.exchange(&message).await?;
        let response = self.parse(&bytes, &message)?;
        let address = self.address;
        if response.metadata.response_code != ResponseCode::NoError {
            // The signature of a refusal is often missing.
            let why = response.signature().and_then(|it| it.data.error);
            let why = why.map(|it| format!(" ({it:?})")).unwrap_or_default();
            let code = response.metadata.response_code;
            return Err(format!(
                "the DNS server {address} refused the update: {code}{why}"
            ));
        }
        if let Some(mut verifier) = verifier {
            verifier.verify(&bytes).map_err(|it| {
                format!("the answer of the DNS server {address} is not signed with the key: {it}")
            })?;
        }
        Ok(())
    }

    fn parse(&self, bytes: &[u8], asked: &Message) -> Result<Message, String> {
        let address = self.address;
        let parsed = Message::from_vec(bytes);
        let parsed = parsed.map_err(|it| format!("the DNS server {address} answered: {it}"))?;
        let is_answer = parsed.metadata.message_type == MessageType::Response
            && parsed.metadata.id == asked.metadata.id;
        if is_answer {
            Ok(parsed)
        } else {
            Err(format!(
                "the DNS server {address} answered a different question"
            ))
        }
    }

    async fn exchange(&self, message: &Message) -> Result<Vec<u8>, String> {
        let bytes = message.to_vec().map_err(|it| it.to_string())?;
        let length = u16::try_from(bytes.len()).map_err(|it| it.to_string())?;
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await?;
            let mut framed = length.to_be_bytes().to_vec();
            framed.extend(bytes);
            stream.write_all(&framed).await?;
            let mut answer = vec![0; stream.read_u16().await?.into()];
            stream.read_exact(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        let address = self.address;
        tokio::select! {
            answer = exchange => answer.map_err(|it| format!("the DNS server {address}: {it}")),
            () = self.clock.sleep(DEADLINE) => {
                let seconds = DEADLINE.as_secs();
                Err(format!("the DNS server {address} did not answer within {seconds} s"))
            }
        }
    }
}
