//! The admin page, and the pages of the HTTP API: their files, embedded in the program.

use axum::Router;
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::{MethodRouter, get};

/// Content Security Policy: a page loads only its own files, and no site may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub fn admin<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/", html(include_str!("page/index.html")))
        .route("/app.js", script(include_str!("page/app.js")))
        .route("/dead.js", script(include_str!("page/dead.js")))
        .merge(shared())
}

/// The search page, the page that tries the API, and their files.
pub fn api<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/", html(include_str!("page/search.html")))
        .route("/search.js", script(include_str!("page/search.js")))
        .route("/search.css", style(include_str!("page/search.css")))
        .route("/api", html(include_str!("page/api.html")))
        .route("/api.js", script(include_str!("page/api.js")))
        .route("/api.css", style(include_str!("page/api.css")))
        .merge(shared())
        .layer(map_response(secure))
}

fn shared<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/view.js", script(include_str!("page/view.js")))
        .route("/style.css", style(include_str!("page/style.css")))
}

fn html<S: Clone + Send + Sync + 'static>(text: &'static str) -> MethodRouter<S> {
    file("text/html; charset=utf-8", text)
}

fn script<S: Clone + Send + Sync + 'static>(text: &'static str) -> MethodRouter<S> {
    file("text/javascript; charset=utf-8", text)
}

fn style<S: Clone + Send + Sync + 'static>(text: &'static str) -> MethodRouter<S> {
    file("text/css; charset=utf-8", text)
}

fn file<S: Clone + Send + Sync + 'static>(
    kind: &'static str,
    text: &'static str,
) -> MethodRouter<S> {
    get(move || async move { ([(header::CONTENT_TYPE, kind)], text) })
}

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
