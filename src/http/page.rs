//! The files of the page, embedded in the program.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::Response;
use axum::routing::get;

use super::Admin;

/// Content Security Policy: the page loads only its own files, and no site may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The routes of `/` and its files.
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

/// Adds the security headers to every answer.
pub async fn secure(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Note texts must not be cached, and an upgraded worker must not get an old page.
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
