//! Who may see notes and change dead letters.
//!
//! A token goes in a header that a browser never sends by itself, so a page of somebody
//! else's cannot act in an operator's name. Without a token only this machine is
//! answered, nothing can be changed, and the name that was asked for must be this
//! machine's: a foreign name that resolves to 127.0.0.1 (DNS rebinding) is refused.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::{Admin, problem};
use crate::config::{Service, is_loopback};

/// Who may.
pub struct Access {
    /// The hash of the token: to compare hashes tells nobody how much of a guess was right.
    token: Option<[u8; 32]>,
}

/// Why somebody may not.
#[derive(Debug, PartialEq)]
enum Denied {
    CrossSite,
    ForeignName,
    NoToken,
    WrongToken,
}

impl Access {
    /// By the configuration.
    pub fn new(service: &Service) -> Self {
        let token = service.admin_token.as_ref();
        Self {
            token: token.map(|token| hash(token.expose())),
        }
    }

    /// Whether anything can be changed at all.
    pub fn can_change(&self) -> bool {
        self.token.is_some()
    }

    fn check(&self, method: &Method, headers: &HeaderMap) -> Result<(), Denied> {
        let get = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let host = get(header::HOST).unwrap_or_default();
        let origin = get(header::ORIGIN).and_then(|origin| origin.split_once("://"));
        let is_foreign =
            headers.contains_key(header::ORIGIN) && origin.is_none_or(|(_, origin)| origin != host);
        let site = headers.get("sec-fetch-site");
        if is_foreign || site.is_some_and(|site| site != "same-origin" && site != "none") {
            return Err(Denied::CrossSite);
        }
        match self.token {
            Some(token) => {
                let given = get(header::AUTHORIZATION).and_then(|a| a.strip_prefix("Bearer "));
                match given.is_some_and(|given| hash(given) == token) {
                    true => Ok(()),
                    false => Err(Denied::WrongToken),
                }
            }
            None if method != Method::GET => Err(Denied::NoToken),
            None if !is_loopback(host) => Err(Denied::ForeignName),
            None => Ok(()),
        }
    }
}

/// Lets nobody pass who may not.
pub async fn guard(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    match admin.access.check(request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(denied) => denied.into_response(),
    }
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        match self {
            Self::CrossSite => problem(
                StatusCode::FORBIDDEN,
                "the request comes from a page of another site",
            ),
            Self::ForeignName => problem(
                StatusCode::FORBIDDEN,
                "without service.admin_token this is answered under the names localhost and \
                 127.0.0.1 only",
            ),
            Self::NoToken => problem(
                StatusCode::FORBIDDEN,
                "nothing can be changed from here without a token: set service.admin_token, or use \
                 `elf dead`",
            ),
            Self::WrongToken => {
                let what = "the token is missing or wrong: send service.admin_token as \
                            `Authorization: Bearer …`";
                let mut response = problem(StatusCode::UNAUTHORIZED, what);
                let scheme = header::HeaderValue::from_static("Bearer");
                response
                    .headers_mut()
                    .insert(header::WWW_AUTHENTICATE, scheme);
                response
            }
        }
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn check(token: Option<&str>, method: Method, sent: &[(&'static str, &str)]) -> Option<Denied> {
        let access = Access {
            token: token.map(hash),
        };
        let headers = sent.iter().map(|(name, value)| {
            let value = HeaderValue::from_str(value).expect("a header");
            (header::HeaderName::from_static(name), value)
        });
        access.check(&method, &headers.collect()).err()
    }

    #[test]
    fn without_a_token_this_machine_may_look_and_nobody_may_change() {
        let here = [("host", "127.0.0.1:9464")];
        assert_eq!(check(None, Method::GET, &here), None);
        assert_eq!(check(None, Method::POST, &here), Some(Denied::NoToken));
        let rebound = [("host", "evil.example:9464")];
        assert_eq!(
            check(None, Method::GET, &rebound),
            Some(Denied::ForeignName)
        );
        assert_eq!(check(None, Method::GET, &[]), Some(Denied::ForeignName));
    }

    #[test]
    fn with_a_token_nobody_may_without_it() {
        let token = Some("a long enough secret");
        let host = ("host", "elf.example");
        for method in [Method::GET, Method::POST] {
            for authorization in ["Bearer wrong", "Basic a long enough secret", "Bearer "] {
                let sent = [host, ("authorization", authorization)];
                assert_eq!(
                    check(token, method.clone(), &sent),
                    Some(Denied::WrongToken)
                );
            }
            let sent = [host, ("authorization", "Bearer a long enough secret")];
            assert_eq!(check(token, method, &sent), None);
        }
    }

    #[test]
    fn a_page_of_another_site_is_refused_whatever_it_sends() {
        let token = Some("a long enough secret");
        for foreign in [
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            let sent = [
                ("host", "localhost:9464"),
                ("authorization", "Bearer a long enough secret"),
                foreign,
            ];
            assert_eq!(check(token, Method::POST, &sent), Some(Denied::CrossSite));
            assert_eq!(check(None, Method::GET, &sent), Some(Denied::CrossSite));
        }
        let own = [
            ("host", "localhost:9464"),
            ("authorization", "Bearer a long enough secret"),
            ("origin", "http://localhost:9464"),
            ("sec-fetch-site", "same-origin"),
        ];
        assert_eq!(check(token, Method::POST, &own), None);
    }
}
