//! What a bench found: its figures with their rounds and targets, as JSON and as a Markdown table.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::{Options, Result, plot};

/// The limit that a figure has to keep.
#[derive(Clone, Copy)]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// No limit: the figure says where time or memory goes.
    None,
}

impl Target {
    fn is_met(self, value: f64) -> Option<bool> {
        match self {
            Self::AtLeast(limit) => Some(value >= limit),
            Self::AtMost(limit) => Some(value <= limit),
            Self::None => None,
        }
    }

    pub fn limit(self) -> Option<f64> {
        match self {
            Self::AtLeast(limit) | Self::AtMost(limit) => Some(limit),
            Self::None => None,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(limit) => write!(f, "≥ {}", short(*limit)),
            Self::AtMost(limit) => write!(f, "≤ {}", short(*limit)),
            Self::None => Ok(()),
        }
    }
}

/// One side of a comparison: what it is, and what each round measured.
pub struct Side {
    pub name: String,
    pub rounds: Vec<f64>,
}

impl Side {
    pub fn new(name: &str, rounds: Vec<f64>) -> Self {
        Self {
            name: name.to_owned(),
            rounds,
        }
    }
}

/// One line of the table: a value, or the ratio of two sides round by round.
pub struct Figure {
    pub name: String,
    pub unit: String,
    /// The sides of a ratio, each in `unit`.
    pub sides: Vec<Side>,
    /// The ratios of the rounds, or their values.
    pub rounds: Vec<f64>,
    pub target: Target,
}

impl Figure {
    /// Whether its rounds are ratios.
    pub fn is_ratio(&self) -> bool {
        !self.sides.is_empty()
    }
}

/// All figures of a bench.
pub struct Report {
    pub name: &'static str,
    options: Options,
    engine: String,
    facts: Vec<(String, String)>,
    pub figures: Vec<Figure>,
}

impl Report {
    pub fn new(name: &'static str, options: Options, engine: &str) -> Self {
        eprintln!("\n{name} ({engine})");
        Self {
            name,
            options,
            engine: engine.to_owned(),
            facts: Vec::new(),
            figures: Vec::new(),
        }
    }

    /// A size or setting that a reader needs to repeat the measurement.
    pub fn fact(&mut self, name: &str, value: impl std::fmt::Display) {
        eprintln!("  {name}: {value}");
        self.facts.push((name.to_owned(), value.to_string()));
    }

    /// Adds the ratio of the first side to the second, round by round.
    pub fn ratio(&mut self, name: &str, unit: &str, sides: [Side; 2], target: Target) {
        let [a, b] = &sides;
        assert_eq!(a.rounds.len(), b.rounds.len(), "each round has both sides");
        let rounds = a.rounds.iter().zip(&b.rounds).map(|(a, b)| a / b).collect();
        self.add(Figure {
            name: name.to_owned(),
            unit: unit.to_owned(),
            sides: sides.into(),
            rounds,
            target,
        });
    }

    /// Adds a value that has no other side.
    pub fn value(&mut self, name: &str, unit: &str, rounds: Vec<f64>, target: Target) {
        self.add(Figure {
            name: name.to_owned(),
            unit: unit.to_owned(),
            sides: Vec::new(),
            rounds,
            target,
        });
    }

    fn add(&mut self, figure: Figure) {
        eprintln!("  {}", row(&figure));
        self.figures.push(figure);
        // So that a bench that fails later leaves what it has.
        if let Err(error) = self.save() {
            eprintln!("{}: the report is not saved: {error}", self.name);
        }
    }

    /// Writes `target/bench/<name>.json` and `.md`.
    fn save(&self) -> Result<()> {
        let folder = folder(self.options)?;
        let json = serde_json::to_string_pretty(&self.to_json())?;
        std::fs::write(folder.join(format!("{}.json", self.name)), json + "\n")?;
        std::fs::write(folder.join(format!("{}.md", self.name)), self.to_markdown())?;
        Ok(())
    }

    /// Writes the report and its plot, and prints the table.
    pub fn write(&self) -> Result<()> {
        self.save()?;
        println!("\n{}", self.to_markdown());
        let plot = format!("{}.svg", self.name);
        plot::rounds(&folder(self.options)?.join(plot), self)
    }

    fn to_markdown(&self) -> String {
        let mut table = format!("**{}** on {}", self.name, self.engine);
        for (name, value) in &self.facts {
            table += &format!("; {name}: {value}");
        }
        table += ".\n\n| figure | sides (medians) | median | spread | rounds | target | |\n";
        table += "|---|---|---|---|---|---|---|\n";
        for figure in &self.figures {
            table += &row(figure);
            table += "\n";
        }
        table
    }

    fn to_json(&self) -> Value {
        let figures: Vec<Value> = self.figures.iter().map(to_json).collect();
        let facts: serde_json::Map<String, Value> = self
            .facts
            .iter()
            .map(|(name, value)| (name.clone(), json!(value)))
            .collect();
        json!({
            "name": self.name,
            "engine": self.engine,
            "quick": self.options.quick,
            "build": if cfg!(debug_assertions) { "debug" } else { "release" },
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "at": chrono::Utc::now().to_rfc3339(),
            "settings": facts,
            "figures": figures,
        })
    }
}

/// `target/bench`, or `target/bench/quick`, which proves nothing about speed.
pub fn folder(options: Options) -> Result<PathBuf> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/bench");
    let folder = if options.quick {
        root.join("quick")
    } else {
        root
    };
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn to_json(figure: &Figure) -> Value {
    let sides: Vec<Value> = figure
        .sides
        .iter()
        .map(|side| json!({ "name": side.name, "rounds": side.rounds, "median": median(&side.rounds) }))
        .collect();
    let (min, max) = spread(&figure.rounds);
    let median = median(&figure.rounds);
    json!({
        "name": figure.name,
        "unit": figure.unit,
        "sides": sides,
        "rounds": figure.rounds,
        "median": median,
        "min": min,
        "max": max,
        "target": figure.target.to_string(),
        "met": figure.target.is_met(median),
    })
}

fn row(figure: &Figure) -> String {
    let sides: Vec<String> = figure
        .sides
        .iter()
        .map(|side| {
            let median = short(median(&side.rounds));
            format!("{} {median} {}", side.name, figure.unit)
        })
        .collect();
    let unit = match figure.is_ratio() {
        true => String::new(),
        false => format!(" {}", figure.unit),
    };
    let (min, max) = spread(&figure.rounds);
    let median = median(&figure.rounds);
    let met = match figure.target.is_met(median) {
        Some(true) => "met",
        Some(false) => "not met",
        None => "",
    };
    format!(
        "| {} | {} | {}{unit} | {}..{} | {} | {} | {met} |",
        figure.name,
        sides.join(" / "),
        short(median),
        short(min),
        short(max),
        figure.rounds.len(),
        figure.target,
    )
}

/// Three significant digits, and no fraction from 100 on.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.2e}"),
    }
}

/// The middle value; the mean of the two in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The value below which this share of them is; the upper one of two.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (share * sorted.len() as f64) as usize;
    sorted[place.min(sorted.len() - 1)]
}

fn spread(values: &[f64]) -> (f64, f64) {
    (quantile(values, 0.0), quantile(values, 1.0))
}
