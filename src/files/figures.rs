//! Figures of a disk and its queue.

use evenkeel_metrics::figures;

figures! {
    /// Figures of a disk and its queue; times in microseconds.
    figures DiskFigures;
    /// Counters of a disk's queue.
    cells IoCounters;
    /// Further facts of a disk.
    given DiskGiven;

    /// The first folder that is on it.
    given name: String;
    /// Reads that wait now.
    given waiting: usize => gauge "queue_length";
    /// Most reads that may wait.
    given queue_max: usize => gauge "queue_limit";
    /// Reads at the disk now.
    given in_flight: usize => gauge "in_flight";
    /// Most reads at the disk.
    given max_in_flight: usize => gauge "in_flight_limit";
    /// Reads done, and other work of the disk: files opened, folders listed.
    counter reads => "reads_total";
    /// Requests that shared the read of another request.
    counter shared => "shared_total";
    /// Reads that bypassed the page cache.
    given direct: u64 => counter "direct_total";
    /// Reads that were refused.
    counter refused => "refused_total";
    /// Time of reads in the queue of the disk.
    seconds wait_us => "wait_seconds";
    /// Time of reads at the disk.
    seconds service_us => "service_seconds";
}
