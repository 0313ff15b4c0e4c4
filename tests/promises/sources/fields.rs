//! The metadata of a row: templates of columns, and an object that SQL makes.

use super::{SOURCE, Shop, TICKETS};

#[tokio::test]
async fn metadata_comes_from_columns_from_json_and_from_other_tables() {
    let tables = "
create table products (id int primary key, body text, stock int, tags text[], attributes jsonb);
create table labels (product_id int, label text, primary key (product_id, label));
create function labels_of(p products) returns jsonb language sql stable as $$
    select jsonb_build_object('labels', jsonb_agg(l.label order by l.label))
      from public.labels l where l.product_id = p.id $$;
insert into products values
    (1, 'A lamp.', 5, '{oak,brass}', '{\"color\": \"red\", \"weight\": {\"value\": 3}}'), (2, 'A desk.', 1, null, null),
    (3, 'A chair.', 1, '{}', 'null');
insert into labels values (1, 'sale'), (1, 'new');";
    let block = r#"
[metadata]
tags = "keywords"
labels = "keywords"
color = "keyword"
weight = "number"
[[sources]]
name = "products"
table = "products"
text = "{body}"
metadata = { tags = "{tags}", color = "none" }
metadata_sql = "coalesce(nullif(attributes, 'null'), '{}') || jsonb_build_object('weight', attributes -> 'weight' -> 'value') || public.labels_of(products)"
"#;
    let mut shop = Shop::not_applied(tables, block).await;
    shop.apply().await;
    shop.execute("grant select on labels to elf_source_writer")
        .await;
    shop.sync().await;
    let metadata = "select metadata::text from memory_notes order by source_id";
    assert_eq!(
        shop.all(metadata).await,
        [
            r#"{"tags": ["oak", "brass"], "color": "red", "labels": ["new", "sale"], "weight": 3}"#,
            r#"{"color": "none"}"#,
            r#"{"tags": [], "color": "none"}"#,
        ]
    );
    shop.site.elf(&["worker", "--once"]).await.exits(0);
    for condition in ["tags=oak", "color=red", "labels=sale", "weight<4"] {
        let found = shop
            .site
            .json(&["search", "furniture", "--where", condition])
            .await;
        let ids: Vec<_> = found["items"].as_array().unwrap().iter().collect();
        assert_eq!(ids.len(), 1, "{condition}: {found}");
        assert_eq!(ids[0]["source_id"], "1");
    }
    shop.execute(
        "insert into labels values (3, 'old');
         select elf_touch('products', variadic array_agg(id)) from products;
         update products set attributes = '{\"color\": \"blue\"}' where id = 2",
    )
    .await;
    assert_eq!(
        shop.all(metadata).await[1..],
        [
            r#"{"color": "blue"}"#,
            r#"{"tags": [], "color": "none", "labels": ["old"]}"#
        ]
    );
}

#[tokio::test]
async fn a_row_whose_metadata_is_no_object_is_left_out_with_the_reason() {
    let tables = format!("{TICKETS} alter table support.tickets add details jsonb;");
    let block = SOURCE.replace(
        "where =",
        "metadata_sql = \"case when views < 0 then to_jsonb(100 / (views + 1)) else details end\"\nwhere =",
    );
    let mut shop = Shop::of(&tables, &block).await;
    shop.execute(
        r#"insert into support.tickets (id, customer_id, body, views, details) values
             (10, 'acme', 'null', 0, null), (11, 'acme', 'null of JSON', 0, 'null'), (12, 'acme', 'fields', 0, '{"a": {"b": 1}, "c": null}'),
             (13, 'acme', 'a list', 0, '[{"a": 1}]'), (14, 'acme', 'a number', -2, null), (15, 'acme', 'fails', -1, null)"#,
    )
    .await;
    assert_eq!(
        shop.left_out().await,
        [
            "13|its metadata is no object",
            "14|its metadata is no object",
            "15|division by zero"
        ]
    );
    let metadata =
        "select metadata::text from memory_notes where source_id::int >= 10 order by source_id";
    assert_eq!(shop.all(metadata).await, ["{}", "{}", r#"{"a": {"b": 1}}"#]);
    assert_eq!(
        shop.enqueued_by("update support.tickets set priority = 1")
            .await,
        0
    );
    shop.execute("update support.tickets set details = '{\"d\": true}' where id = 13")
        .await;
    assert_eq!(shop.all(metadata).await[3], r#"{"d": true}"#);
    let shown = shop.site.elf(&["config", "show"]).await.exits(0).stdout;
    assert!(shown.contains("metadata_sql = "), "{shown}");
    let synced = shop.sync().await;
    assert_eq!(synced["items"][0]["stale"], 0, "{synced}");
}
