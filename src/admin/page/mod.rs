//! The status page: one document with its style and its script, without
//! outside resources.

/// The document; `$NONCE` is replaced by the nonce of each answer.
pub(super) fn document() -> &'static str {
    concat!(
        include_str!("head.html"),
        "<style nonce=\"$NONCE\">\n",
        include_str!("page.css"),
        "</style>\n",
        include_str!("body.html"),
        "<script nonce=\"$NONCE\">\n\"use strict\";\n(() => {\n",
        include_str!("format.js"),
        include_str!("plot.js"),
        include_str!("model.js"),
        include_str!("tables.js"),
        include_str!("problems.js"),
        include_str!("endpoint.js"),
        include_str!("caches.js"),
        include_str!("limits.js"),
        include_str!("main.js"),
        "})();\n</script>\n</html>\n",
    )
}
