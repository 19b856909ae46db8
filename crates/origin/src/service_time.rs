//! Distributions of service times, as the command line writes them.

use std::str::FromStr;
use std::time::Duration;

use crate::duration::parse_duration;

/// A distribution of service times.
#[derive(Debug, Clone, PartialEq)]
pub enum ServiceTime {
    /// Always the same.
    Fixed {
        /// The time.
        time: Duration,
    },
    /// Exponentially distributed.
    Exponential {
        /// Its mean.
        mean: Duration,
    },
    /// Log-normally distributed: long tails.
    LogNormal {
        /// Half the requests take less.
        median: Duration,
        /// Standard deviation of the logarithm.
        sigma: f64,
    },
    /// Each part with its share of the requests; the shares add up to 1.
    Mix {
        /// Share and distribution.
        parts: Vec<(f64, ServiceTime)>,
    },
}

impl ServiceTime {
    /// Draws one service time.
    pub fn draw(&self, rng: &mut fastrand::Rng) -> Duration {
        match self {
            ServiceTime::Fixed { time } => *time,
            ServiceTime::Exponential { mean } => mean.mul_f64(-(1.0 - rng.f64()).ln()),
            ServiceTime::LogNormal { median, sigma } => {
                // Box-Muller; 1 - u keeps the logarithm away from zero.
                let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
                let normal = radius * (std::f64::consts::TAU * rng.f64()).cos();
                median.mul_f64((sigma * normal).exp())
            }
            ServiceTime::Mix { parts } => {
                let mut left = rng.f64();
                for (share, part) in parts {
                    if left < *share {
                        return part.draw(rng);
                    }
                    left -= share;
                }
                parts
                    .last()
                    .map_or(Duration::ZERO, |(_, part)| part.draw(rng))
            }
        }
    }

    /// The mean of the distribution.
    pub fn mean(&self) -> Duration {
        match self {
            ServiceTime::Fixed { time } => *time,
            ServiceTime::Exponential { mean } => *mean,
            ServiceTime::LogNormal { median, sigma } => median.mul_f64((sigma * sigma / 2.0).exp()),
            ServiceTime::Mix { parts } => parts
                .iter()
                .map(|(share, part)| part.mean().mul_f64(*share))
                .sum(),
        }
    }
}

impl FromStr for ServiceTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text
            .split(':')
            .next()
            .is_some_and(|head| head.contains('%'))
        {
            return parse_mix(text);
        }
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "fixed" => Ok(ServiceTime::Fixed {
                time: parse_duration(rest)?,
            }),
            "exp" => Ok(ServiceTime::Exponential {
                mean: parse_duration(rest)?,
            }),
            "lognormal" => {
                let (median, sigma) = rest
                    .split_once(',')
                    .ok_or_else(|| format!("service time {text:?}: expected MEDIAN,SIGMA"))?;
                let sigma = sigma
                    .parse()
                    .map_err(|_| format!("service time {text:?}: sigma is not a number"))?;
                Ok(ServiceTime::LogNormal {
                    median: parse_duration(median)?,
                    sigma,
                })
            }
            _ => Err(format!(
                "service time {text:?}: expected fixed:TIME, exp:MEAN, lognormal:MEDIAN,SIGMA or a mix"
            )),
        }
    }
}

/// Reads `95%fixed:5ms,5%lognormal:500ms,1`: a part begins where a percentage
/// does, since a comma also separates the two figures of a log-normal.
fn parse_mix(text: &str) -> Result<ServiceTime, String> {
    let mut parts: Vec<(f64, String)> = Vec::new();
    for piece in text.split(',') {
        match (piece.split_once('%'), parts.last_mut()) {
            (Some((percent, rest)), _) => {
                let percent: f64 = percent
                    .parse()
                    .map_err(|_| format!("service time {text:?}: {percent:?} is not a number"))?;
                parts.push((percent / 100.0, rest.to_owned()));
            }
            (None, Some((_, last))) => {
                last.push(',');
                last.push_str(piece);
            }
            (None, None) => return Err(format!("service time {text:?}: no percentage")),
        }
    }
    let total: f64 = parts.iter().map(|(share, _)| share).sum();
    if (total - 1.0).abs() > 1e-6 {
        return Err(format!(
            "service time {text:?}: the percentages add up to {}",
            total * 100.0
        ));
    }
    let parts = parts
        .into_iter()
        .map(|(share, part)| Ok((share, part.parse()?)))
        .collect::<Result<_, String>>()?;
    Ok(ServiceTime::Mix { parts })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_of(text: &str, count: u32) -> f64 {
        let time: ServiceTime = text.parse().unwrap();
        let mut rng = fastrand::Rng::with_seed(7);
        let total: Duration = (0..count).map(|_| time.draw(&mut rng)).sum();
        total.as_secs_f64() / f64::from(count)
    }

    #[test]
    fn the_mean_drawn_is_the_mean_stated() {
        for text in [
            "fixed:20ms",
            "exp:20ms",
            "lognormal:20ms,0.5",
            "95%fixed:5ms,5%fixed:500ms",
            "50%lognormal:10ms,0.3,50%exp:1ms",
        ] {
            let stated = text.parse::<ServiceTime>().unwrap().mean().as_secs_f64();
            let drawn = mean_of(text, 200_000);
            assert!(
                (drawn / stated - 1.0).abs() < 0.03,
                "{text}: {drawn} against {stated}"
            );
        }
    }

    #[test]
    fn mistakes_are_refused() {
        for text in [
            "",
            "20ms",
            "fixed:",
            "lognormal:5ms",
            "90%fixed:5ms",
            "x%fixed:5ms,95%exp:1s",
        ] {
            assert!(text.parse::<ServiceTime>().is_err(), "{text}");
        }
    }
}
