//! A table of the application whose rows are notes, and every way to write to it.

use elf::config::Config;
use elf::sources;
use elf::store::SourceDrift;
use rand::Rng;
use sqlx::{AssertSqlSafe, PgConnection};

use super::application::Application;
use super::harness::Harness;
use super::site::{Done, Site};

/// Rows without an owner, and those whose rank is no number, can be no notes.
const TABLE: &str = "
create table articles (
    shelf text, number int, owner text, body text, rank text not null default '0.5', is_draft boolean not null default false,
    views int not null default 0, primary key (shelf, number)
)";

const BLOCK: &str = r#"
[[sources]]
name = "articles"
table = "articles"
tenant_id = "{owner}"
importance = "{rank}"
where = "not is_draft"
text = "Edition 0. {body}"
"#;

/// What differs between notes and rows, and between the rows that are left out and those that can be no notes.
const DIFFERENCES: &str = "
with r as (
    select jsonb_build_array(shelf, number::text)::text as id, owner, 'Edition {edition}. ' || btrim(body) as text, rank,
           coalesce(owner, '') <> '' and rank <> 'high' as is_fit
      from articles where not is_draft
)
select concat_ws(' | ', 'note', r.id, r.owner, left(r.text, 60), r.rank, 'is', n.source_id, n.tenant_id, left(n.text, 60), n.importance)
  from (select * from r where is_fit) r full join (select * from memory_notes where source = 'articles') n on n.source_id = r.id
 where (r.owner, r.text, r.rank::real) is distinct from (n.tenant_id, n.text, n.importance::real)
union all
select concat_ws(' | ', 'left out', r.id, 'is', l.source_id, l.reason)
  from (select * from r where not is_fit) r full join elf_left_out l on l.source_id = r.id
 where r.id is null or l.source_id is null";

/// The source of a site. An [`Application`] that is made after it writes to the table, too.
pub struct Articles {
    edition: usize,
}

impl Articles {
    /// Makes the table, and installs the source.
    pub async fn start(site: &Site, db: &mut PgConnection) -> Self {
        execute(db, TABLE).await;
        site.write("elf.toml", site.toml() + BLOCK);
        site.elf(&["source", "apply"]).await.exits(0);
        Self { edition: 0 }
    }

    /// Changes the text of all notes in `elf.toml`.
    pub fn edit(&mut self, site: &Site) {
        let edition = |edition| format!("Edition {edition}.");
        site.configure(&edition(self.edition), &edition(self.edition + 1));
        self.edition += 1;
    }

    /// Makes all notes those of the present edition, after an interruption.
    pub async fn apply_and_sync(&self, site: &Site) -> Done {
        site.elf(&["source", "apply"]).await.exits(0);
        site.elf(&["source", "sync"]).await.exits(0)
    }

    /// What ELF finds that differs.
    pub async fn drift(&self, h: &Harness) -> SourceDrift {
        let config = Config::parse(&h.toml(), "elf.toml", &|_| None).unwrap();
        let store = &h.pipeline.serving.store;
        let listed = sources::list(store, &config.sources).await.unwrap();
        let compared = sources::compare(store, &listed[0], false, |_| {}).await;
        compared.unwrap().drift
    }

    /// Fails unless each row is the note that it has to be, or is left out, and no other note is there.
    #[track_caller]
    pub fn assert_followed(&self, db: &mut PgConnection) -> impl Future<Output = ()> {
        let statement = DIFFERENCES.replace("{edition}", &self.edition.to_string());
        let caller = std::panic::Location::caller();
        async move {
            let differences: Vec<String> = sqlx::query_scalar(AssertSqlSafe(statement))
                .fetch_all(db)
                .await
                .unwrap();
            assert_eq!(differences, [""; 0], "at {caller}");
        }
    }
}

impl Application {
    /// Writes rows, in whatever way. A row that becomes a note again has another text: its old vectors are gone.
    pub(super) async fn write_rows(&mut self) {
        let shelf = self.name;
        let number = self.random.random_range(0..30);
        let other = self.random.random_range(0..30);
        let [one, two, three, four] = [0; 4].map(|_| self.text());
        let at = |number: i32| format!("'{shelf}', {number}");
        let row = format!("where (shelf, number) = ({})", at(number));
        let update = |set: &str| format!("update articles set body = '{one}', {set} {row}");
        let upsert = format!(
            "insert into articles (shelf, number, owner, body)
             values ({}, 'acme', '{two}'), ({}, 'globex', '{three}'), ({}, 'acme', '{four}')
             on conflict (shelf, number) do update set (body, owner) = (excluded.body, excluded.owner)",
            at(number),
            at(number + 1),
            at(number + 2),
        );
        let delete = format!("delete from articles {row}");
        let empty = match shelf {
            "" => "truncate articles".to_owned(),
            // Two that have written rows would wait for each other.
            _ => format!("delete from articles where shelf = '{shelf}'"),
        };
        let statements = match self.random.random_range(0..22) {
            0..6 => upsert,
            6..9 => update("views = views + 1"),
            9 => format!(
                "{} and not exists (select from articles where (shelf, number) = ({}))",
                update(&format!("number = {other}")),
                at(other)
            ),
            10 => format!(
                "delete from articles where shelf = '{shelf}' and number < 0;
                 update articles set number = number - 100, body = replace('{one}', 'subject', 'subject ' || number)
                  where shelf = '{shelf}' and number > {number}"
            ),
            11 => update("is_draft = not is_draft"),
            12 => update("owner = case when owner is null then 'acme' end"),
            13 => update("rank = case rank when 'high' then '0.7' else 'high' end"),
            14 => format!("update articles set owner = 'initech' {row}"),
            15 => format!("update articles set views = views + 1 where shelf = '{shelf}'"),
            16 => delete,
            17 => format!(
                "begin; {upsert}; savepoint s; {delete}; {empty}; rollback to s; {}; commit",
                update("rank = '0.6'")
            ),
            18 => format!(
                "begin; {delete}; savepoint s; {upsert}; release s; {}; commit",
                update("rank = '0.6'")
            ),
            19 => format!("begin; {upsert}; {delete}; rollback"),
            20 => format!(
                "merge into articles a using (values ({}, '{one}'), ({}, '{two}')) v (shelf, number, body)
                    on (a.shelf, a.number) = (v.shelf, v.number)
                  when matched and a.views > 1 then delete
                  when matched then update set body = v.body
                  when not matched then insert (shelf, number, owner, body) values (v.shelf, v.number, 'acme', v.body)",
                at(number),
                at(number + 5)
            ),
            _ => "truncate articles".into(),
        };
        execute(&mut self.db, &statements).await;
    }
}

async fn execute(db: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
        .execute(db)
        .await
        .unwrap_or_else(|error| panic!("{statements}: {error}"));
}
