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
    if let Some(elsewhere) = known.iter().find_map(|path| path_to(name, path)) {
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
