//! Figures of everything with exchanges: listeners, routes, upstreams. Endpoints have the phases.

use evenkeel_metrics::figures;

figures! {
    /// Durations and sizes of exchanges: times in microseconds, sizes in bytes.
    figures PhaseFigures;
    /// Durations and sizes of exchanges. A phase that an exchange did not reach is not counted.
    cells Phases;

    /// Time in the upstream's queue, of exchanges that waited there.
    seconds queue_us => "queue_seconds";
    /// Time spent opening connections, of exchanges that needed one.
    seconds connect_us => "connect_seconds" if Full;
    /// Time from sending the request to the response's head.
    seconds first_byte_us => "first_byte_seconds" if Full;
    /// Time from the first byte of the request's head to the exchange's end.
    seconds total_us => "duration_seconds";
    /// Size of the response, head and body.
    bytes response_bytes => "response_size_bytes" if Full;
}

figures! {
    /// Figures of exchanges, for each object that has exchanges.
    figures ExchangeFigures;
    /// A worker's counters of exchanges.
    cells ExchangeCounters;

    /// Exchanges that ended, with any result.
    counter requests => "requests_total";
    /// Exchanges answered with 5xx (except configured answers), or cut off by the endpoint's or
    /// this server's fault.
    counter errors => "errors_total";
    /// Bytes of request heads and bodies, from clients.
    counter bytes_in => "request_bytes_total";
    /// Bytes of response heads and bodies, to clients.
    counter bytes_out => "response_bytes_total";
    /// Responses by class of status; exchanges without a response are not counted.
    classes status => "responses_total" after "errors_total";
    /// Exchanges by how they ended, with the word of the access log; only words that occurred.
    ends ends => "ends_total" after "responses_total";
    /// Durations and sizes. An upstream's cells have only exchanges that reached no endpoint. The
    /// others are counted at their last endpoint.
    nested phases: Phases;
}

impl Phases {
    /// Adds counts that no longer change. Only the worker that owns `self` may call this.
    pub(super) fn take_over(&self, other: &Phases) {
        self.queue_us.take_over(&other.queue_us);
        self.connect_us.take_over(&other.connect_us);
        self.first_byte_us.take_over(&other.first_byte_us);
        self.total_us.take_over(&other.total_us);
        self.response_bytes.take_over(&other.response_bytes);
    }
}

impl PhaseFigures {
    /// Adds other figures.
    pub(super) fn merge(&mut self, other: &PhaseFigures) {
        self.queue_us.merge(&other.queue_us);
        self.connect_us.merge(&other.connect_us);
        self.first_byte_us.merge(&other.first_byte_us);
        self.total_us.merge(&other.total_us);
        self.response_bytes.merge(&other.response_bytes);
    }
}
