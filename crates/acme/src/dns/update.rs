//! Dynamic updates (RFC 2136) that are signed (RFC 8945).

use std::sync::Arc;
use std::time::Duration;

use data_encoding::BASE64;
use hickory_proto::op::{Message, update_message};
use hickory_proto::rr::rdata::TXT;
use hickory_proto::rr::rdata::tsig::TsigAlgorithm as Algorithm;
use hickory_proto::rr::{Name, RData, Record as ResourceRecord, RecordSet, RecordType, TSigner};
use hickory_resolver::Resolver;

use super::Record;
use super::exchange::Server;
use crate::clock::Clock;
use crate::error::Error;
use crate::settings::{TsigAlgorithm, UpdateSettings};

/// The time to live of a record, in seconds. An order takes less.
const TTL: u32 = 60;

/// How far the clocks of both ends may differ, in seconds (RFC 8945, section 10).
const FUDGE: u16 = 300;

/// How often the server is asked for a record, and for how long.
const ASK_EVERY: Duration = Duration::from_secs(1);
const ASK_TIMES: u32 = 60;

/// The most aliases that are followed.
const MAX_ALIASES: usize = 8;

/// A server that takes updates.
pub(crate) struct Updates {
    server: Server,
    zone: Option<Name>,
    key: TSigner,
}

impl Updates {
    /// # Errors
    /// A name or the key cannot be used.
    pub(crate) fn new(settings: UpdateSettings, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let algorithm = match settings.algorithm {
            TsigAlgorithm::HmacSha256 => Algorithm::HmacSha256,
            TsigAlgorithm::HmacSha384 => Algorithm::HmacSha384,
            TsigAlgorithm::HmacSha512 => Algorithm::HmacSha512,
        };
        let parse =
            |name: &String| full_name(name).map_err(|_| Error::DnsName { name: name.clone() });
        let secret = BASE64.decode(settings.secret.trim().as_bytes());
        let secret = secret.map_err(|_| Error::TsigSecret)?;
        let key = TSigner::new(secret, algorithm, parse(&settings.key_name)?, FUDGE);
        Ok(Self {
            server: Server {
                address: settings.server,
                clock,
            },
            zone: settings.zone.as_ref().map(parse).transpose()?,
            key: key.map_err(|_| Error::TsigSecret)?,
        })
    }

    /// Adds a record, and waits until the server answers with it.
    ///
    /// # Errors
    /// The server refuses it, or does not show it in time.
    pub(crate) async fn present(&self, record: &Record) -> Result<(), String> {
        let (name, zone) = self.place(record).await?;
        let records = records(&name, record);
        let update = update_message::append(records, zone, false, true);
        self.server.update(update, &self.key).await?;
        for _ in 0..ASK_TIMES {
            let answer = self.server.query(&name, RecordType::TXT).await?;
            if has_record(&answer, record) {
                return Ok(());
            }
            self.server.clock.sleep(ASK_EVERY).await;
        }
        let address = self.server.address;
        let seconds = ASK_EVERY.as_secs() * u64::from(ASK_TIMES);
        Err(format!(
            "the DNS server {address} accepted the update, but did not serve {name} within \
             {seconds} s"
        ))
    }

    /// Removes a record. Others of the same name stay.
    ///
    /// # Errors
    /// The server refuses it.
    pub(crate) async fn clean_up(&self, record: &Record) -> Result<(), String> {
        let (name, zone) = self.place(record).await?;
        let update = update_message::delete_by_rdata(records(&name, record), zone, true);
        self.server.update(update, &self.key).await
    }

    /// The name that a record gets, and its zone. Aliases (CNAME) are followed.
    async fn place(&self, record: &Record) -> Result<(Name, Name), String> {
        let mut name = full_name(&record.name)?;
        for _ in 0..MAX_ALIASES {
            match self.alias(&name).await? {
                Some(alias) => name = alias,
                None => {
                    let zone = match &self.zone {
                        Some(zone) => zone.clone(),
                        None => self.zone_of(&name).await?,
                    };
                    return if zone.zone_of(&name) {
                        Ok((name, zone))
                    } else {
                        Err(format!("{name} is not in the zone {zone}"))
                    };
                }
            }
        }
        Err(format!(
            "{} has more than {MAX_ALIASES} aliases",
            record.name
        ))
    }

    /// The name that another is an alias of, by our server where the name is in a zone of
    /// it, else by the resolver of the system.
    async fn alias(&self, name: &Name) -> Result<Option<Name>, String> {
        let answer = self.server.query(name, RecordType::CNAME).await?;
        if answer.metadata.authoritative {
            return Ok(alias_in(&answer.answers, name));
        }
        let resolver = Resolver::builder_tokio().and_then(|it| it.build());
        let resolver = resolver.map_err(|it| format!("the resolver of the system: {it}"))?;
        match resolver.lookup(name.clone(), RecordType::CNAME).await {
            Ok(found) => Ok(alias_in(found.answers(), name)),
            Err(error) if error.is_no_records_found() => Ok(None),
            Err(error) => Err(format!("{name} cannot be looked up: {error}")),
        }
    }

    /// The zone of our server that a name is in: the owner of the SOA record.
    async fn zone_of(&self, name: &Name) -> Result<Name, String> {
        let answer = self.server.query(name, RecordType::SOA).await?;
        let records = answer.answers.iter().chain(&answer.authorities);
        let mut zones = records.filter(|it| matches!(it.data, RData::SOA(_)));
        let zone = zones
            .find(|it| it.name.zone_of(name))
            .map(|it| it.name.clone());
        zone.ok_or_else(|| {
            let (address, code) = (self.server.address, answer.metadata.response_code);
            format!("the DNS server {address} has no zone for {name}: {code}")
        })
    }
}

fn full_name(name: &str) -> Result<Name, String> {
    let parsed = Name::from_ascii(name);
    let mut parsed = parsed.map_err(|it| format!("{name} is not a valid DNS name: {it}"))?;
    parsed.set_fqdn(true);
    Ok(parsed)
}

fn records(name: &Name, record: &Record) -> RecordSet {
    let data = RData::TXT(TXT::new(vec![record.value.clone()]));
    ResourceRecord::from_rdata(name.clone(), TTL, data).into()
}

fn has_record(answer: &Message, record: &Record) -> bool {
    answer.answers.iter().any(|it| match &it.data {
        RData::TXT(text) => text.txt_data.concat() == record.value.as_bytes(),
        _ => false,
    })
}

fn alias_in(records: &[ResourceRecord], name: &Name) -> Option<Name> {
    records.iter().find_map(|it| match &it.data {
        RData::CNAME(alias) if it.name == *name => Some(alias.0.clone()),
        _ => None,
    })
}
