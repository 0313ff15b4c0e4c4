//! The rules of the admin port: which requests may read notes and change dead letters.
//!
//! The token is sent in a header that a browser never sends by itself, so a page of another
//! site cannot act in an operator's name. Without a configured token the port answers only
//! this machine and changes nothing. Then the `Host` of a request must be a name of this
//! machine: a foreign name that resolves to 127.0.0.1 (DNS rebinding) is refused on every path.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::{Admin, problem};
use crate::config::{Service, is_loopback};
use crate::telemetry::AUDIT;

/// The token and address that the rules depend on.
pub struct Auth {
    /// The hash of the token: the time to compare hashes does not reveal how much of a guess was
    /// right.
    token: Option<[u8; 32]>,
    /// Whether the port is bound to a loopback address.
    is_local: bool,
}

/// Why a request is refused.
#[derive(Debug, PartialEq)]
enum Denied {
    CrossSite,
    ForeignName,
    NoToken,
    WrongToken,
}

impl Auth {
    /// Takes the token and the bound address from `[service]`.
    pub fn new(service: &Service) -> Self {
        let token = service.admin_token.as_ref();
        Self {
            token: token.map(|token| hash(token.expose())),
            is_local: is_loopback(&service.admin_bind),
        }
    }

    /// Whether requests can change anything: only with a token configured.
    pub fn can_change(&self) -> bool {
        self.token.is_some()
    }

    /// Checks a request for the page, which holds no data. With a token, a proxy on this machine
    /// may serve the page under any name.
    fn check_page(&self, headers: &HeaderMap) -> Result<(), Denied> {
        match self.token {
            Some(_) => Ok(()),
            None => self.check_health(headers),
        }
    }

    /// Checks a request for health or metrics. ELF cannot know the names under which a port on a
    /// network is reached, so it checks `Host` on a loopback port only. A request without
    /// `Host` is a health check, not a browser.
    fn check_health(&self, headers: &HeaderMap) -> Result<(), Denied> {
        let is_own = |host: &HeaderValue| host.to_str().is_ok_and(is_loopback);
        match headers.get(header::HOST) {
            Some(host) if self.is_local && !is_own(host) => Err(Denied::ForeignName),
            _ => Ok(()),
        }
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

/// Guards the paths that show notes or change dead letters.
pub async fn guard(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let checked = admin.auth.check(request.method(), request.headers());
    // A request without a token is no attack: the page sends one before the operator signs in.
    if checked == Err(Denied::WrongToken) && request.headers().contains_key(header::AUTHORIZATION) {
        let (method, path) = (request.method(), request.uri().path());
        tracing::warn!(target: AUDIT, %peer, %method, path, "wrong admin token refused");
    }
    pass(checked, request, next).await
}

pub async fn guard_page(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    pass(admin.auth.check_page(request.headers()), request, next).await
}

pub async fn guard_health(
    State(admin): State<Arc<Admin>>,
    request: Request,
    next: Next,
) -> Response {
    pass(admin.auth.check_health(request.headers()), request, next).await
}

async fn pass(checked: Result<(), Denied>, request: Request, next: Next) -> Response {
    match checked {
        Ok(()) => next.run(request).await,
        Err(denied) => denied.into_response(),
    }
}

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        let (status, what) = match self {
            Self::CrossSite => (
                StatusCode::FORBIDDEN,
                "the request comes from a page of another site",
            ),
            Self::ForeignName => (
                StatusCode::FORBIDDEN,
                "this port answers only under localhost or a loopback address: open the page as \
                 http://127.0.0.1",
            ),
            Self::NoToken => (
                StatusCode::FORBIDDEN,
                "this port is read-only without a token: set service.admin_token, or use \
                 `elf dead`",
            ),
            Self::WrongToken => (
                StatusCode::UNAUTHORIZED,
                "the token is missing or wrong: send service.admin_token as \
                 `Authorization: Bearer …`",
            ),
        };
        let scheme =
            (status == StatusCode::UNAUTHORIZED).then_some([(header::WWW_AUTHENTICATE, "Bearer")]);
        (scheme, problem(status, what)).into_response()
    }
}

fn hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(token: Option<&str>, method: Method, sent: &[(&'static str, &str)]) -> Option<Denied> {
        let auth = Auth {
            token: token.map(hash),
            is_local: true,
        };
        let headers = sent.iter().map(|(name, value)| {
            let value = HeaderValue::from_str(value).expect("a header");
            (header::HeaderName::from_static(name), value)
        });
        auth.check(&method, &headers.collect()).err()
    }

    #[test]
    fn without_a_token_this_machine_may_read_and_not_change() {
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
    fn a_local_port_is_not_answered_under_a_name_of_another_site() {
        let auth_of = |token: Option<&str>, is_local| Auth {
            token: token.map(hash),
            is_local,
        };
        let named = |host: &'static str| {
            HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))])
        };
        let (local, guarded, public) = (
            auth_of(None, true),
            auth_of(Some("a long enough secret"), true),
            auth_of(Some("a long enough secret"), false),
        );
        let foreign = named("evil.example:9464");
        for own in ["localhost:9464", "127.0.0.1:9464", "[::1]:9464"] {
            for auth in [&local, &guarded] {
                assert_eq!(auth.check_page(&named(own)), Ok(()));
                assert_eq!(auth.check_health(&named(own)), Ok(()));
            }
        }
        assert_eq!(local.check_page(&foreign), Err(Denied::ForeignName));
        assert_eq!(local.check_health(&foreign), Err(Denied::ForeignName));
        assert_eq!(guarded.check_health(&foreign), Err(Denied::ForeignName));
        assert_eq!(guarded.check_page(&foreign), Ok(()), "by a proxy");
        assert_eq!(public.check_health(&named("elf.svc:9464")), Ok(()));
        assert_eq!(
            local.check_health(&HeaderMap::new()),
            Ok(()),
            "a health check"
        );
    }

    #[test]
    fn a_configured_token_is_required() {
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
