//! The kinds of value that the options of ACME take.

use crate::setting::{Fault, FromText, resolve_to};
use crate::value::ServerName;

resolve_to!(DirectoryUrl => String);

/// A URL that is asked whether a name may have a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AskUrl(pub String);

impl FromText for AskUrl {
    const FORM: &'static str = "a URL, such as `\"http://127.0.0.1:9000/allowed\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        let rest = (text.strip_prefix("http://")).or_else(|| text.strip_prefix("https://"));
        if rest.is_some_and(is_host_and_path) {
            return Ok(Self(text.to_owned()));
        }
        let fault = Fault::new(format!("`{text}` is not a valid URL"));
        Err(fault.help(
            "write a full URL with scheme, host and path, as in \"http://127.0.0.1:9000/allowed\"",
        ))
    }
}

/// Whether this can follow the scheme of a URL.
fn is_host_and_path(rest: &str) -> bool {
    let is_known = |it: u8| it.is_ascii_graphic() && !b"#@".contains(&it);
    !rest.is_empty() && !rest.starts_with(['/', ':', '?']) && rest.bytes().all(is_known)
}

/// The URL of an issuer's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryUrl(pub String);

/// Issuers by name, and the URLs of their directories.
const ISSUERS: &[(&str, &str)] = &[
    (
        "letsencrypt",
        "https://acme-v02.api.letsencrypt.org/directory",
    ),
    (
        "letsencrypt-staging",
        "https://acme-staging-v02.api.letsencrypt.org/directory",
    ),
    ("zerossl", "https://acme.zerossl.com/v2/DV90"),
    ("google", "https://dv.acme-v02.api.pki.goog/directory"),
];

impl FromText for DirectoryUrl {
    const FORM: &'static str = "the URL of an ACME directory, such as \
        `\"https://acme.internal/dir\"`, or `\"letsencrypt\"`, `\"letsencrypt-staging\"`, \
        `\"zerossl\"` or `\"google\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        let named = ISSUERS.iter().find(|(name, _)| *name == text);
        if let Some((_, url)) = named {
            return Ok(Self((*url).to_owned()));
        }
        let fault = Fault::new(format!("`{text}` is not a valid URL of an ACME directory"));
        let Some(rest) = text.strip_prefix("https://") else {
            let names: Vec<_> = ISSUERS.iter().map(|(name, _)| *name).collect();
            return Err(if text.starts_with("http://") {
                // RFC 8555 §6.1
                fault.help("ACME needs HTTPS: write `https://`")
            } else {
                fault.help(format!(
                    "write a URL, as in \"https://acme.internal/dir\", or one of {}",
                    names.join(", ")
                ))
            });
        };
        if !is_host_and_path(rest) {
            return Err(
                fault.help("write host, port and path, as in \"https://acme.internal:14000/dir\"")
            );
        }
        Ok(Self(text.to_owned()))
    }
}

/// The e-mail address of an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountEmail(pub String);

impl FromText for AccountEmail {
    const FORM: &'static str = "an e-mail address, such as `\"admin@example.com\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        // A URL of the address (RFC 6068), in the form of ACME.
        let address = match text.split_once(':') {
            Some((scheme, address)) if scheme.eq_ignore_ascii_case("mailto") => address,
            _ => text,
        };
        let is_address = address.split_once('@').is_some_and(|(local, domain)| {
            !local.is_empty() && is_host_name(domain) && !local.contains([',', '?', ':'])
        });
        if is_address && address.bytes().all(|it| it.is_ascii_graphic()) {
            return Ok(Self(address.to_owned()));
        }
        let fault = Fault::new(format!("`{text}` is not a valid e-mail address"));
        Err(fault.help("write one, as in \"admin@example.com\", or `true` to give none"))
    }
}

/// A name that a certificate is ordered for, in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateName(pub String);

impl FromText for CertificateName {
    const FORM: &'static str = "a host name, such as `\"www.example.com\"` or `\"*.example.com\"`";

    fn from_text(text: &str) -> Result<Self, Fault> {
        let host = text.strip_prefix("*.").unwrap_or(text);
        if is_host_name(host) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        let fault = Fault::new(format!("ACME issues no certificate for the name `{text}`"));
        Err(fault.help("write a host name, as in \"www.example.com\" or \"*.example.com\""))
    }
}

/// Whether a text is the name of a host, and not an address.
pub(crate) fn is_host_name(text: &str) -> bool {
    let is_address = text.parse::<std::net::IpAddr>().is_ok();
    !is_address && !text.contains('_') && ServerName::from_text(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::{AccountEmail, AskUrl, CertificateName, DirectoryUrl};
    use crate::setting::FromText;

    fn read<T: FromText>(text: &str) -> Option<T> {
        T::from_text(text).ok()
    }

    #[test]
    fn directories_have_urls_and_names() {
        let url = |text| read::<DirectoryUrl>(text).map(|it| it.0);
        assert_eq!(url("https://a.b/dir").unwrap(), "https://a.b/dir");
        assert!(url("letsencrypt-staging").unwrap().contains("acme-staging"));
        for wrong in [
            "http://a.b/dir",
            "lets-encrypt",
            "https:///dir",
            "https://u@a/",
            "",
        ] {
            assert_eq!(url(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_server_is_asked_by_its_url() {
        let url = |text| read::<AskUrl>(text).map(|it| it.0);
        for right in ["http://127.0.0.1:9000/allowed", "https://a.b/?key=1"] {
            assert_eq!(url(right).as_deref(), Some(right));
        }
        for wrong in [
            "127.0.0.1:9000",
            "ftp://a/",
            "http://",
            "http://u@a/",
            "http://a/#b",
        ] {
            assert_eq!(url(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_account_has_an_address() {
        let email = |text| read::<AccountEmail>(text).map(|it| it.0);
        assert_eq!(email("a+b@example.com").unwrap(), "a+b@example.com");
        assert_eq!(email("mailto:a@b.example").unwrap(), "a@b.example");
        assert_eq!(email("MAILTO:a@b.example").unwrap(), "a@b.example");
        for wrong in [
            "a",
            "@b.example",
            "a@",
            "a@b c",
            "a,b@c.example",
            "mailto:mailto:a@b.example",
            "tel:a@b.example",
            "",
        ] {
            assert_eq!(email(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn certificates_are_for_hosts_and_for_those_below_them() {
        let name = |text| read::<CertificateName>(text).map(|it| it.0);
        assert_eq!(name("WWW.Example.com").unwrap(), "www.example.com");
        assert_eq!(name("*.example.com").unwrap(), "*.example.com");
        for wrong in [
            "10.0.0.1",
            "a.*.example.com",
            "*",
            "a_b.example",
            "a:80",
            "",
        ] {
            assert_eq!(name(wrong), None, "{wrong}");
        }
    }
}
