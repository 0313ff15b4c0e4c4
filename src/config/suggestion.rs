//! Suggests a known key for an unknown one.

/// Suggests the key that `name` in `section` was probably meant to be. `known` has every key.
pub(super) fn suggestion(section: &str, name: &str, known: &[&str]) -> String {
    let prefix = if section.is_empty() {
        String::new()
    } else {
        format!("{section}.")
    };
    // The keys of this section and the sections below it.
    let mut here: Vec<&str> = known
        .iter()
        .filter_map(|path| path.strip_prefix(&prefix)?.split('.').next())
        .collect();
    here.dedup();
    let elsewhere = known.iter().filter_map(|path| path_to(name, path)).rev();
    // The nearest; of several, `max_by_key` takes the last.
    if let Some(elsewhere) = elsewhere.max_by_key(|path| shared_parts(section, path)) {
        return format!("did you mean {elsewhere}?");
    }
    let likeness = |candidate: &str| strsim::jaro_winkler(name, candidate);
    let nearest = here
        .iter()
        .max_by(|one, other| likeness(one).total_cmp(&likeness(other)));
    match nearest {
        Some(near) if likeness(near) > 0.8 => format!("did you mean {near}?"),
        _ => format!("known here: {}", here.join(", ")),
    }
}

/// How many parts the beginnings of two paths have in common.
fn shared_parts(one: &str, other: &str) -> usize {
    let parts = one.split('.').zip(other.split('.'));
    parts.take_while(|(one, other)| one == other).count()
}

/// `storage.qdrant.bm25` for `bm25` in `storage.qdrant.bm25.language`.
fn path_to<'p>(name: &str, path: &'p str) -> Option<&'p str> {
    let mut end = 0;
    for part in path.split('.') {
        end += part.len();
        if part == name {
            return Some(&path[..end]);
        }
        end += 1;
    }
    None
}
