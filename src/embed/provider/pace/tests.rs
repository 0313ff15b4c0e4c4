use std::collections::HashMap;

use super::*;
use crate::embed::provider::simulated::{Ended, Kind, Server};

const TIMEOUT: Duration = Duration::from_secs(30);
const LIMITS: Limits = Limits {
    max_inputs: 256,
    max_tokens: 100_000,
};

#[derive(Debug)]
struct Run {
    /// The share of the server's best throughput.
    ratio: f64,
    /// How often each text was sent.
    sent: f64,
    requests: usize,
    max_in_flight: usize,
    allowed: usize,
}

/// Sends `texts` texts to `server` at the pace that it learns.
fn run(mut server: Server, texts: usize) -> Run {
    let best = server.best_secs(texts, LIMITS.max_inputs);
    let start = Instant::now();
    let mut pace = Pace::new(LIMITS, 16, TIMEOUT);
    let mut in_flight = HashMap::new();
    let (mut left, mut sent, mut requests, mut most) = (texts, 0, 0, 0);
    loop {
        let now = start + Duration::from_secs_f64(server.now());
        if in_flight.len() < pace.allowed() && left > 0 {
            let count = pace.fits(&mut std::iter::repeat_n(100, left), now);
            let request = pace.sent(std::iter::repeat_n(100, count), now);
            in_flight.insert(server.submit(count, TIMEOUT), (request, count));
            left -= count;
            sent += count;
            requests += 1;
            most = most.max(in_flight.len());
            continue;
        }
        let Some(ended) = server.advance() else {
            break;
        };
        let now = start + Duration::from_secs_f64(server.now());
        match ended {
            Ended::Answered(id) => pace.answered(&in_flight.remove(&id).expect("sent").0, now),
            Ended::TimedOut(id) => {
                let (request, count) = in_flight.remove(&id).expect("sent");
                pace.timed_out(&request, now);
                left += count;
            }
        }
    }
    let run = Run {
        ratio: best / server.answered_at(),
        sent: sent as f64 / texts as f64,
        requests,
        max_in_flight: most,
        allowed: pace.allowed(),
    };
    println!("{server:?}: {run:?}");
    assert!(run.sent <= 1.1, "{server:?}: {run:?}");
    run
}

fn reaches(server: Server, texts: usize, ratio: f64) -> Run {
    let run = run(server, texts);
    assert!(run.ratio >= ratio, "{run:?}");
    run
}

#[test]
fn one_processor_gets_no_more_requests_than_it_computes() {
    for kind in [Kind::Shared, Kind::Serial] {
        for text in [0.015, 0.15, 1.5] {
            let run = reaches(Server::new(kind, 0.01, text), 2000, 0.85);
            assert!(run.max_in_flight <= 2, "{run:?}");
        }
        reaches(Server::new(kind, 0.01, 0.15), 410, 0.85);
    }
}

#[test]
fn a_parallel_server_gets_as_many_requests_as_it_computes_at_once() {
    for at_once in [2, 3, 5, 6, 8, 12] {
        let run = reaches(
            Server::new(Kind::Parallel(at_once), 0.02, 0.0),
            400_000,
            0.85,
        );
        assert!(run.allowed >= at_once, "{run:?}");
    }
    reaches(Server::new(Kind::Parallel(4), 0.2, 0.01), 100_000, 0.8);
    reaches(Server::new(Kind::Parallel(8), 0.05, 0.15), 5_000, 0.8);
}

#[test]
fn a_fast_server_has_full_requests_from_the_third_on() {
    let run = run(Server::new(Kind::Parallel(8), 0.02, 0.0), 10_000);
    assert!(
        run.requests <= 2 + 10_000 / LIMITS.max_inputs + 1,
        "{run:?}"
    );
}

#[test]
fn a_fixed_cost_is_not_answered_with_small_requests() {
    let run = run(Server::new(Kind::Serial, 3.0, 0.001), 10_000);
    assert!(run.requests < 150, "{run:?}");
}

#[test]
fn a_pace_that_changes_by_ten_is_followed_without_a_timeout() {
    for kind in [Kind::Shared, Kind::Serial, Kind::Parallel(4)] {
        for factor in [10.0, 0.1] {
            let server = Server::new(kind, 0.01, 0.15).changing_at(30.0, factor);
            let run = reaches(server, 4000, 0.85);
            assert!(run.sent <= 1.0, "{kind:?} {factor}: {run:?}");
        }
    }
}

#[test]
fn after_a_timeout_requests_are_far_smaller() {
    let start = Instant::now();
    let at = |secs| start + Duration::from_secs(secs);
    let mut pace = Pace::new(LIMITS, 4, TIMEOUT);
    let first = pace.sent([100; 8], start);
    pace.answered(&first, at(0));
    let tokens = || std::iter::repeat_n(100, 500);
    assert_eq!(pace.fits(&mut tokens(), at(0)), 64);
    let second = pace.sent([100; 64], at(0));
    assert!(!pace.explains(&second, at(30)));
    pace.timed_out(&second, at(30));
    assert!(pace.fits(&mut tokens(), at(30)) <= 5);
    // The pace is now known to be that slow.
    let third = pace.sent([100; 64], at(30));
    assert!(pace.explains(&third, at(60)));
}

#[test]
fn requests_begin_small_after_a_long_silence() {
    let start = Instant::now();
    let mut pace = Pace::new(LIMITS, 4, TIMEOUT);
    let sent = pace.sent([100; 8], start);
    pace.answered(&sent, start);
    let fits = |at| pace.fits(&mut std::iter::repeat_n(100, 500), at);
    assert_eq!(fits(start + STALE), 64);
    assert_eq!(fits(start + STALE * 2), FIRST_TEXTS);
}

#[test]
fn requests_refused_together_halve_the_limit_once() {
    let start = Instant::now();
    let mut pace = Pace::new(LIMITS, 16, TIMEOUT);
    pace.allowed = 8;
    let mut now = start;
    let mut seen = Vec::new();
    for _ in 0..4 {
        let together = [(); 3].map(|()| pace.sent([100; 8], now));
        now += Duration::from_secs(1);
        for sent in &together {
            pace.refused(sent, now);
        }
        now += Duration::from_secs(1);
        seen.push(pace.allowed());
    }
    assert_eq!(seen, [4, 2, 1, 1]);
}

#[test]
fn requests_are_filled_to_either_limit() {
    let limits = Limits {
        max_inputs: 3,
        max_tokens: 10,
    };
    let pace = Pace::new(limits, 4, TIMEOUT);
    for (tokens, fitting) in [
        (vec![1, 1, 1, 1], 3),
        (vec![5, 5, 1], 2),
        (vec![1, 9, 1], 2),
        (vec![20, 1], 1),
    ] {
        let fits = pace.fits(&mut tokens.iter().copied(), Instant::now());
        assert_eq!(fits, fitting, "{tokens:?}");
    }
}
