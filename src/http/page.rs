//! The page itself: a few files that are part of the program.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use axum::routing::get;

use super::Admin;

/// The page loads nothing but its own files, and nobody may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// `/` and what it needs.
pub fn routes() -> Router<Arc<Admin>> {
    let file = |kind: &'static str, text: &'static str| {
        get(move || async move { ([(header::CONTENT_TYPE, kind)], text) })
    };
    let script = |text| file("text/javascript; charset=utf-8", text);
    Router::new()
        .route(
            "/",
            file("text/html; charset=utf-8", include_str!("page/index.html")),
        )
        .route("/app.js", script(include_str!("page/app.js")))
        .route("/view.js", script(include_str!("page/view.js")))
        .route("/dead.js", script(include_str!("page/dead.js")))
        .route(
            "/style.css",
            file("text/css; charset=utf-8", include_str!("page/style.css")),
        )
}

/// What every answer carries.
pub async fn secure(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Note texts belong into no cache, and a new version has a new page.
        (header::CACHE_CONTROL, "no-store"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
