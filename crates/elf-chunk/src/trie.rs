//! The entries of a vocabulary, as a trie.

/// The letters of a word.
pub(super) type Word = Vec<char>;

/// Letters below have a table at the roots: those of nearly all scripts.
const TABLE: usize = 0x1_0000;

/// More children are searched by halves.
const FEW: usize = 8;

/// In a label: an entry ends at this node.
const ENDS: u32 = 1 << 31;

/// Where all entries begin.
pub(super) const HEAD: usize = 0;
/// Where those with the prefix begin, behind it.
pub(super) const TAIL: usize = 1;

/// The nodes are in the order of their depth, so the children of a node follow each other.
pub(super) struct Trie {
    /// The letter that leads to each node, and [`ENDS`].
    labels: Vec<u32>,
    /// The first child of each node; its last is before the first of the next node.
    children: Vec<u32>,
    /// The children of both roots by their letters; 0 for none.
    tables: [Box<[u32]>; 2],
}

impl Trie {
    /// The `entries`, and below [`TAIL`] those that begin with `prefix` without it.
    pub(super) fn new<'v>(entries: impl Iterator<Item = &'v str>, prefix: &str) -> Self {
        let (mut heads, mut tails): (Vec<Word>, Vec<Word>) = (Vec::new(), Vec::new());
        for entry in entries {
            heads.push(entry.chars().collect());
            tails.extend(
                entry
                    .strip_prefix(prefix)
                    .map(|tail| tail.chars().collect()),
            );
        }
        heads.sort_unstable();
        tails.sort_unstable();

        let (mut labels, mut children) = (vec![0, 0], Vec::new());
        // The entries below each node, from its depth on.
        let mut nodes: Vec<(&[Word], usize)> = vec![(&heads, 0), (&tails, 0)];
        let mut node = 0;
        while let Some(&(entries, depth)) = nodes.get(node) {
            children.push(number(labels.len()));
            let longer = entries.partition_point(|entry| entry.len() == depth);
            for below in entries[longer..].chunk_by(|a, b| a[depth] == b[depth]) {
                let ends = if below[0].len() == depth + 1 { ENDS } else { 0 };
                labels.push(u32::from(below[0][depth]) | ends);
                nodes.push((below, depth + 1));
            }
            node += 1;
        }
        children.push(number(labels.len()));
        let mut trie = Self {
            labels,
            children,
            tables: [HEAD, TAIL].map(|_| vec![0; TABLE].into_boxed_slice()),
        };
        for root in [HEAD, TAIL] {
            for child in trie.children[root]..trie.children[root + 1] {
                let letter = trie.labels[child as usize] & !ENDS;
                if let Some(place) = trie.tables[root].get_mut(letter as usize) {
                    *place = child;
                }
            }
        }
        trie
    }

    /// Where the tokens of a word end, appended to `ends`: each is the longest entry. Returns false if a
    /// part of the word is unknown.
    pub(super) fn split(&self, word: &[char], ends: &mut Vec<usize>) -> bool {
        let (mut done, mut root) = (0, HEAD);
        while done < word.len() {
            let Some(longest) = self.longest(root, &word[done..]) else {
                return false;
            };
            done += longest;
            ends.push(done);
            root = TAIL;
        }
        true
    }

    /// Letters of the longest entry that `rest` begins with.
    fn longest(&self, root: usize, rest: &[char]) -> Option<usize> {
        let mut longest = None;
        self.each_prefix(root, rest, |letters, _| longest = Some(letters));
        longest
    }

    /// Calls `each` with the letters of every entry that `rest` begins with, and its node; the shortest
    /// first.
    pub(super) fn each_prefix(
        &self,
        root: usize,
        rest: &[char],
        mut each: impl FnMut(usize, usize),
    ) {
        let mut next = rest.first().and_then(|&letter| self.first(root, letter));
        let mut letters = 1;
        while let Some(node) = next {
            if self.labels[node] & ENDS != 0 {
                each(letters, node);
            }
            next = rest
                .get(letters)
                .and_then(|&letter| self.child(node, letter));
            letters += 1;
        }
    }

    /// The number of nodes; each is less.
    pub(super) fn nodes(&self) -> usize {
        self.labels.len()
    }

    /// The node where the entry ends.
    pub(super) fn node_of(&self, root: usize, entry: &str) -> Option<usize> {
        let mut letters = entry.chars();
        let first = self.first(root, letters.next()?)?;
        letters.try_fold(first, |node, letter| self.child(node, letter))
    }

    fn first(&self, root: usize, letter: char) -> Option<usize> {
        match self.tables[root].get(letter as usize) {
            Some(&child) => Some(child as usize).filter(|&child| child != 0),
            None => self.child(root, letter),
        }
    }

    fn child(&self, node: usize, letter: char) -> Option<usize> {
        let first = self.children[node] as usize;
        let labels = &self.labels[first..self.children[node + 1] as usize];
        let letter = u32::from(letter);
        let place = match labels.len() <= FEW {
            true => labels.iter().position(|label| label & !ENDS == letter),
            false => labels
                .binary_search_by_key(&letter, |label| label & !ENDS)
                .ok(),
        };
        place.map(|place| first + place)
    }
}

fn number(place: usize) -> u32 {
    u32::try_from(place).expect("a vocabulary has fewer letters")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_is_the_longest_entry() {
        let entries = [
            "un", "unaff", "##aff", "##able", "##a", "u", "会", "##", "", "#",
        ];
        let trie = Trie::new(entries.into_iter(), "##");
        let split = |word: &str| {
            let mut ends = Vec::new();
            let word: Word = word.chars().collect();
            trie.split(&word, &mut ends).then_some(ends)
        };
        assert_eq!(split("unaffable"), Some(vec![5, 9]));
        assert_eq!(split("unable"), Some(vec![2, 6]));
        assert_eq!(split("ua"), Some(vec![1, 2]));
        assert_eq!(split("会a"), Some(vec![1, 2]));
        assert_eq!(split("会会"), None);
        assert_eq!(split("a"), None, "it only continues a word");
        assert_eq!(split("#"), Some(vec![1]));
        assert_eq!(split(""), Some(vec![]));
    }
}
