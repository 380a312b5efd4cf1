//! DCQCN, the congestion control of RoCEv2 NICs: the rate of one flow, cut by congestion notifications and raised by a timer
//! and a byte counter. After Zhu et al., "Congestion control for large-scale RDMA deployments" (SIGCOMM 2015), with the
//! parameters of that paper but for the additive increase; asked by `rocev2/mod.rs` before each packet.
//!
//! Its timers need no events: what they did since the last question is made up for when the next one comes.

use metaroce_proto::types::Time;

/// How it behaves.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DcqcnConfig {
    /// Weight of a new sample in alpha.
    pub gain: f64,
    /// Alpha sinks whenever no notification came for so long.
    pub alpha_timer_ns: u64,
    /// The rate rises whenever so much time has passed …
    pub increase_timer_ns: u64,
    /// … and whenever so many bytes were sent.
    pub increase_bytes: u64,
    /// Rises half-way back to the rate before the cut, of the timer or of the bytes.
    pub fast_recoveries: u32,
    /// The target then rises by this each time …
    pub additive_bits_per_s: f64,
    /// … and by this, once more each time, when both are beyond fast recovery.
    pub hyper_bits_per_s: f64,
    /// It is never slower.
    pub least_bits_per_s: f64,
}

impl Default for DcqcnConfig {
    fn default() -> Self {
        Self {
            gain: 1.0 / 256.0,
            alpha_timer_ns: 55_000,
            increase_timer_ns: 55_000,
            increase_bytes: 10_000_000,
            fast_recoveries: 5,
            // The paper has 40 Mb/s, and leaves the other open. Its links are slower: here that takes up to twice as long for
            // a collective as ten times as much, and more than that gains little.
            additive_bits_per_s: 400e6,
            hyper_bits_per_s: 4e9,
            least_bits_per_s: 100e6,
        }
    }
}

/// See the file's head.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    config: DcqcnConfig,
    line_bits_per_s: f64,
    current: f64,
    target: f64,
    alpha: f64,
    alpha_due: Time,
    increase_due: Time,
    sent_bytes: u64,
    /// Rises since the last cut, by timer and by bytes.
    timer_rises: u32,
    byte_rises: u32,
}

impl Dcqcn {
    /// A flow that begins at the rate of its line.
    #[must_use]
    pub fn new(config: DcqcnConfig, line_bits_per_s: f64, now: Time) -> Self {
        Self {
            config,
            line_bits_per_s,
            current: line_bits_per_s,
            target: line_bits_per_s,
            alpha: 1.0,
            alpha_due: now + config.alpha_timer_ns,
            increase_due: now + config.increase_timer_ns,
            sent_bytes: 0,
            timer_rises: 0,
            byte_rises: 0,
        }
    }

    /// The rate now.
    pub fn bits_per_s(&mut self, now: Time) -> f64 {
        self.catch_up(now);
        self.current
    }

    /// So many bytes were sent.
    pub fn sent(&mut self, now: Time, bytes: u64) {
        self.catch_up(now);
        self.sent_bytes += bytes;
        if self.sent_bytes >= self.config.increase_bytes {
            self.sent_bytes -= self.config.increase_bytes;
            self.byte_rises += 1;
            self.rise();
        }
    }

    /// The receiver tells of congestion.
    pub fn notified(&mut self, now: Time) {
        self.catch_up(now);
        self.target = self.current;
        self.current = (self.current * (1.0 - self.alpha / 2.0)).max(self.config.least_bits_per_s);
        self.alpha = (1.0 - self.config.gain) * self.alpha + self.config.gain;
        self.alpha_due = now + self.config.alpha_timer_ns;
        self.increase_due = now + self.config.increase_timer_ns;
        (self.sent_bytes, self.timer_rises, self.byte_rises) = (0, 0, 0);
    }

    fn catch_up(&mut self, now: Time) {
        while self.alpha_due <= now {
            self.alpha *= 1.0 - self.config.gain;
            self.alpha_due = self.alpha_due + self.config.alpha_timer_ns;
        }
        while self.increase_due <= now {
            self.timer_rises = self.timer_rises.saturating_add(1);
            self.rise();
            self.increase_due = self.increase_due + self.config.increase_timer_ns;
        }
    }

    fn rise(&mut self) {
        let (most, least) = (
            self.timer_rises.max(self.byte_rises),
            self.timer_rises.min(self.byte_rises),
        );
        let fast = self.config.fast_recoveries;
        if least > fast {
            self.target += f64::from(least - fast) * self.config.hyper_bits_per_s;
        } else if most > fast {
            self.target += self.config.additive_bits_per_s;
        }
        self.target = self.target.min(self.line_bits_per_s);
        self.current = (self.current + self.target) / 2.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: f64 = 100e9;

    fn dcqcn() -> Dcqcn {
        Dcqcn::new(DcqcnConfig::default(), LINE, Time::ZERO)
    }

    fn at_us(us: u64) -> Time {
        Time::from_ns(us * 1_000)
    }

    #[test]
    fn the_first_notification_halves_the_rate_and_fast_recovery_brings_it_back() {
        let mut dcqcn = dcqcn();
        dcqcn.notified(at_us(1));
        assert_eq!(dcqcn.bits_per_s(at_us(2)), LINE / 2.0);
        assert_eq!(dcqcn.bits_per_s(at_us(1 + 55)), LINE * 0.75);
        let recovered = dcqcn.bits_per_s(at_us(1 + 5 * 55));
        assert_eq!(recovered, LINE * (1.0 - 1.0 / 64.0));
    }

    #[test]
    fn alpha_and_with_it_the_cut_sinks_in_quiet_times() {
        let mut dcqcn = dcqcn();
        // 256 timers leave 1/e of alpha.
        dcqcn.notified(at_us(256 * 55));
        let cut = 1.0 - dcqcn.bits_per_s(at_us(256 * 55)) / LINE;
        assert!((cut - 0.5 / std::f64::consts::E).abs() < 0.002, "{cut}");
    }

    #[test]
    fn beyond_fast_recovery_the_target_rises_slowly_and_with_many_bytes_fast() {
        let mut quiet = dcqcn();
        (0..5).for_each(|us| quiet.notified(at_us(us)));
        let begun = quiet.target;
        quiet.bits_per_s(at_us(4 + 9 * 55));
        assert!((quiet.target - begun - 4.0 * 400e6).abs() < 1.0);
        let mut busy = dcqcn();
        (0..5).for_each(|us| busy.notified(at_us(us)));
        (0..7).for_each(|_| busy.sent(at_us(5), 10_000_000));
        busy.bits_per_s(at_us(4 + 6 * 55));
        // Two by bytes alone, then the sixth of the timer makes both sides at least six.
        assert!((busy.target - begun - 2.0 * 400e6 - 5.0 * 400e6 - 4e9).abs() < 1.0);
    }

    #[test]
    fn it_stays_between_its_bounds() {
        let mut dcqcn = dcqcn();
        (0..100).for_each(|us| dcqcn.notified(at_us(us)));
        assert_eq!(dcqcn.bits_per_s(at_us(100)), 100e6);
        assert!(dcqcn.bits_per_s(at_us(60_000_000)) <= LINE);
    }
}
