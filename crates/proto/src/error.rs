//! Mistakes in messages, each with the word that logs and counters use and the
//! text of the answer.

/// Declares an error enum with a word, a status and a sentence per variant.
#[macro_export]
macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])* $variant:ident => $status:literal, $word:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[doc = $doc])* $variant,)* }

        impl $name {
            /// Every variant, in order; the position is its counter's index.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The status of the answer.
            pub fn status(self) -> u16 {
                match self { $($name::$variant => $status,)* }
            }

            /// The word that the log and the counter use.
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }

            /// A sentence for the answer's body.
            pub fn text(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str(self.text())
            }
        }

        impl std::error::Error for $name {}
    };
}

reasons! {
    /// Why a request's head is refused.
    RequestError {
        /// The request line is not `method SP target SP version`.
        RequestLine => 400, "request-line", "the request line is malformed";
        /// A line ends in LF without CR.
        BareLf => 400, "bare-lf", "a line ends in LF without CR";
        /// A field name is empty or holds a byte that no token may.
        FieldName => 400, "field-name", "a field name is malformed";
        /// White space stands between a field name and its colon.
        SpaceBeforeColon => 400, "space-before-colon", "a field has white space before its colon";
        /// A field line begins with white space (RFC 9112 §5.2).
        ObsFold => 400, "obs-fold", "a field value is folded over several lines";
        /// A NUL byte.
        Nul => 400, "nul", "the head contains a NUL byte";
        /// A field value holds a control byte.
        FieldValue => 400, "field-value", "a field value contains a control byte";
        /// More fields than are read.
        TooManyFields => 431, "too-many-fields", "the request has too many fields";
        /// The target is neither a path, a URL, `*` nor an authority.
        Target => 400, "target", "the request target is malformed";
        /// No `Host` in HTTP/1.1.
        HostMissing => 400, "host-missing", "the Host field is missing";
        /// More than one `Host`.
        HostRepeated => 400, "host-repeated", "the Host field is repeated";
        /// A `Host` that no host can have.
        HostInvalid => 400, "host-invalid", "the Host field is malformed";
        /// A `Content-Length` that is not one number.
        ContentLength => 400, "content-length", "Content-Length is not a number";
        /// More than one `Content-Length`, alike or not.
        ContentLengthRepeated => 400, "content-length-repeated", "Content-Length is repeated";
        /// Both `Content-Length` and `Transfer-Encoding`.
        LengthAndCoding => 400, "length-and-coding", "Content-Length and Transfer-Encoding are \
            both present";
        /// A transfer coding other than exactly `chunked`.
        TransferCoding => 400, "transfer-coding", "the transfer coding is not understood";
        /// A major version other than 1.
        Version => 505, "version", "the HTTP version is not supported";
        /// The target is longer than the limit.
        TargetTooLong => 414, "target-too-long", "the request target is longer than the limit";
        /// The head is longer than the limit.
        HeadTooLarge => 431, "head-too-large", "the request head is larger than the limit";
        /// An `Expect` other than `100-continue` (RFC 9110 §10.1.1).
        Expectation => 417, "expectation", "the expectation is not understood";
    }
}

reasons! {
    /// Why a body is refused; in a request the answer is 400.
    BodyError {
        /// A chunk's size is empty, too long or not hexadecimal.
        ChunkSize => 400, "chunk-size", "a chunk size is malformed";
        /// The text behind a chunk's size is no extension, or is too long.
        ChunkExtension => 400, "chunk-extension", "a chunk extension is malformed or too long";
        /// A chunk's data is not followed by CRLF.
        ChunkEnd => 400, "chunk-end", "a chunk does not end where its size says";
        /// The trailer section is malformed.
        Trailer => 400, "trailer", "the trailer section is malformed";
        /// The trailer section is longer than is read.
        TrailerTooLarge => 431, "trailer-too-large", "the trailer section is larger than the limit";
        /// A request of gRPC-Web whose body should be base64 has something else.
        Base64 => 400, "base64", "the body is not valid base64";
    }
}

reasons! {
    /// Why a response's head is not believed; the client is answered 502.
    ResponseError {
        /// The first line is not HTTP/1's.
        StatusLine => 502, "upstream-status-line", "the endpoint's status line is malformed";
        /// A malformed field line.
        Field => 502, "upstream-field", "a field of the endpoint's answer is malformed";
        /// More fields than are read.
        TooManyFields => 502, "upstream-too-many-fields", "the endpoint's answer has too many fields";
        /// A head longer than is read.
        HeadTooLarge => 502, "upstream-head-too-large", "the head of the endpoint's answer is too large";
        /// A length that is not one number, or a coding other than exactly `chunked`.
        Framing => 502, "upstream-framing", "the length of the endpoint's answer is ambiguous";
        /// A 101 that nobody asked for.
        Upgrade => 502, "upstream-upgrade", "the endpoint switched to a protocol that the client \
            did not request";
    }
}

reasons! {
    /// Why no file can be at a request's path.
    PathError {
        /// A `%` without two hexadecimal digits after it.
        Percent => 400, "path-percent", "the path has a malformed percent sign";
        /// A NUL byte, however it is written.
        Nul => 400, "path-nul", "the path contains a NUL byte";
        /// `%2F`: a slash within a name.
        EncodedSlash => 400, "path-slash", "the path has an encoded slash";
        /// More `..` than there are folders before them.
        Climbs => 400, "path-climbs", "the path leads out of the served folder";
        /// A name longer than a file can have.
        NameTooLong => 404, "path-name-too-long", "a name in the path is longer than a file name \
            can be";
        /// Longer than the system takes.
        TooLong => 404, "path-too-long", "the path is longer than a file path can be";
    }
}
