//! Asking the running process, over its control socket.
//!
//! The command is `explain`, then the request as JSON in hexadecimal, so that it is always one
//! word. The answer is one object: the explanation or `{"error": …}`.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use evenkeel_policy::balance::Learned;
use evenkeel_policy::dispatch::Outlook;
use evenkeel_policy::endpoint::EndpointId;
use serde_json::json;

use super::asked::ExplainedRequest;
use super::{
    ActionStep, Explanation, LearnedStep, Prospect, RuntimeState, UpstreamStep, WorkerStep,
    explain_on, now_step, presence,
};
use crate::observe::figures::Sources;
use crate::observe::inquiry::{Answers, Question, WorkerOutlook, ask};

/// The command's name.
pub const COMMAND: &str = "explain";

/// Answers the command in the running process; `asked` is its argument.
pub async fn answer(sources: &Sources, asked: &str) -> String {
    let explained = from_hex(asked)
        .and_then(|json| serde_json::from_slice::<ExplainedRequest>(&json).ok())
        .ok_or_else(|| "explain needs a request, as `evenkeel explain` sends it".to_owned())
        .and_then(|asked| {
            let running = Some(&*sources.dispatchers);
            let kept = RuntimeState {
                caches: &sources.caches,
                limits: Some(&sources.limits),
                maintenance: Some(&sources.maintenance),
            };
            let explained = explain_on(&sources.config, running, kept, &asked);
            let explained = explained.map_err(|error| error.to_string())?;
            Ok((explained, asked.endpoint))
        });
    let answer = match explained {
        Ok(((mut explanation, prospect), endpoint)) => {
            explanation.draining = sources.is_draining.load(Ordering::Relaxed);
            if let (Some(step), Some(prospect)) = (upstream_of(&mut explanation), prospect) {
                add_workers(step, sources, prospect).await;
                presence::add(step, &sources.discovered, endpoint.as_deref());
            }
            json!(explanation)
        }
        Err(error) => json!({ "error": error }),
    };
    format!("{answer}\n")
}

fn upstream_of(explanation: &mut Explanation) -> Option<&mut UpstreamStep> {
    match explanation.action.as_mut()? {
        ActionStep::Upstream(step) => Some(step),
        ActionStep::Files(files) => files.upstream.as_mut(),
        ActionStep::Answer(_) | ActionStep::Redirect(_) => None,
    }
}

/// Asks every worker where it would send the request, as each has its own balancer.
async fn add_workers(step: &mut UpstreamStep, sources: &Sources, prospect: Prospect) {
    let settings = &sources.config.upstreams[prospect.upstream];
    let dispatcher = &sources.dispatchers[prospect.upstream];
    let asking = prospect.asking_of(settings, dispatcher);
    let question = |reply| Question::Outlook(dispatcher.clone(), asking, reply);
    let Answers { answers, silent } = ask(&sources.inquiries, question).await;
    step.silent_workers = silent;
    // The workers' answers are newer than the earlier readings, and of one moment.
    let is_served = |it: &&WorkerOutlook| matches!(it.outlook, Outlook::Served { .. });
    if let Some(of_worker) = answers.iter().find(is_served).or(answers.first()) {
        step.now = Some(now_step(of_worker.outlook, settings));
    }
    let workers = answers.iter().map(|it| WorkerStep {
        worker: it.worker,
        endpoint: match it.outlook {
            Outlook::Served { endpoint } => {
                let endpoint = dispatcher.endpoint(endpoint);
                endpoint.map(|it| it.name().to_owned())
            }
            Outlook::Waits { .. } | Outlook::Refused(_) => None,
        },
    });
    step.workers = workers.collect();
    let members = dispatcher.members();
    let ids = members.endpoints().iter().map(|it| (it.name(), it.id()));
    let ids: HashMap<_, _> = ids.collect();
    let learned = learned_by_endpoint(&answers);
    for endpoint in &mut step.endpoints {
        let id = ids.get(&*endpoint.name);
        endpoint.reason = sources.discovered.reason(&settings.name, &endpoint.name);
        endpoint.learned = id.and_then(|id| learned.get(id)).copied();
    }
}

/// Measurements of the workers for each endpoint.
fn learned_by_endpoint(answers: &[WorkerOutlook]) -> HashMap<EndpointId, LearnedStep> {
    let mut steps = HashMap::new();
    for (id, learned) in answers.iter().flat_map(|it| &it.learned) {
        let one = match *learned {
            Learned::Slowness(times) => LearnedStep::Slowness([times; 2]),
            Learned::Time(time) => LearnedStep::FirstByteUs([time.as_secs_f64() * 1e6; 2]),
        };
        let step = steps.entry(*id).or_insert(one);
        *step = widened(*step, one);
    }
    steps
}

/// The range over both measurements.
fn widened(all: LearnedStep, one: LearnedStep) -> LearnedStep {
    let widen = |a: [f64; 2], b: [f64; 2]| [a[0].min(b[0]), a[1].max(b[1])];
    match (all, one) {
        (LearnedStep::Slowness(a), LearnedStep::Slowness(b)) => LearnedStep::Slowness(widen(a, b)),
        (LearnedStep::FirstByteUs(a), LearnedStep::FirstByteUs(b)) => {
            LearnedStep::FirstByteUs(widen(a, b))
        }
        // All workers of an upstream have the same balancer.
        (all, _) => all,
    }
}

/// The command that explains `asked`.
pub fn command(asked: &ExplainedRequest) -> String {
    let asked = to_hex(json!(asked).to_string().as_bytes());
    format!("{COMMAND} {asked}")
}

/// Reads the answer to the command.
///
/// # Errors
/// The process can't explain the request: the text says why.
pub fn read(answer: &str) -> Result<Explanation, String> {
    let value: serde_json::Value = serde_json::from_str(answer)
        .map_err(|_| format!("the process answered: {}", answer.trim()))?;
    if let Some(error) = value.get("error").and_then(|it| it.as_str()) {
        return Err(error.to_owned());
    }
    serde_json::from_value(value)
        .map_err(|error| format!("the process has another version: {error}"))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).map(|it| it as u8);
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| match pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        for text in ["0", "0g", "{}", "000"] {
            assert_eq!(from_hex(text), None, "{text}");
        }
    }
}
