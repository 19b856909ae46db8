//! Of whatever has exchanges: listeners, routes, upstreams; their phases also
//! of endpoints.

use evenkeel_metrics::figures;

figures! {
    /// What exchanges took: times in microseconds, sizes in bytes.
    figures PhaseFigures;
    /// What exchanges took. A phase that an exchange did not reach is not
    /// counted.
    cells Phases;

    /// Time in the upstream's queue, of exchanges that waited there.
    seconds queue_us => "queue_seconds";
    /// Time spent opening connections, of exchanges that needed one.
    seconds connect_us => "connect_seconds" if Full;
    /// Time from the request sent to the response's head received.
    seconds first_byte_us => "first_byte_seconds" if Full;
    /// Time from the first byte of the request's head to the exchange's end.
    seconds total_us => "duration_seconds";
    /// Size of the response, head and body.
    bytes response_bytes => "response_size_bytes" if Full;
}

figures! {
    /// What is counted of exchanges, wherever they are counted.
    figures ExchangeFigures;
    /// What a worker counts of exchanges.
    cells ExchangeCounters;

    /// Exchanges that ended, however they did.
    counter requests => "requests_total";
    /// Exchanges answered with 5xx (but for configured answers), or not whole by
    /// the endpoint's or this server's fault.
    counter errors => "errors_total";
    /// Bytes of request heads and bodies, from clients.
    counter bytes_in => "request_bytes_total";
    /// Bytes of response heads and bodies, to clients.
    counter bytes_out => "response_bytes_total";
    /// Responses by class of status; none where no response had begun.
    classes status => "responses_total" after "errors_total";
    /// Exchanges by how they ended: the word that the access log has; those that
    /// occurred.
    ends ends => "ends_total" after "responses_total";
    /// What they took. Of an upstream's cells, only of exchanges that came to no
    /// endpoint: the others are with their last one.
    nested phases: Phases;
}

impl Phases {
    /// Adds those of others, which nobody adds to any more; only the worker that owns
    /// these may.
    pub(super) fn take_over(&self, other: &Phases) {
        self.queue_us.take_over(&other.queue_us);
        self.connect_us.take_over(&other.connect_us);
        self.first_byte_us.take_over(&other.first_byte_us);
        self.total_us.take_over(&other.total_us);
        self.response_bytes.take_over(&other.response_bytes);
    }
}

impl PhaseFigures {
    /// Adds those of others.
    pub(super) fn merge(&mut self, other: &PhaseFigures) {
        self.queue_us.merge(&other.queue_us);
        self.connect_us.merge(&other.connect_us);
        self.first_byte_us.merge(&other.first_byte_us);
        self.total_us.merge(&other.total_us);
        self.response_bytes.merge(&other.response_bytes);
    }
}
