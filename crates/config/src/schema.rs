//! The JSON Schema of the configuration, for editors.

use serde_json::{Map, Value as Json, json};

use super::setting::Setting;
use super::shape::{KeyShape, Presence, Shape, TableShape};
use super::tree::{self, Node, SourcePlace, Value};
use super::written::File;

/// The JSON Schema (draft 2020-12) of the configuration, ending in a newline.
pub fn schema() -> String {
    let mut schema = shape_schema(&File::shape());
    schema.insert(
        "$schema".into(),
        json!("https://json-schema.org/draft/2020-12/schema"),
    );
    schema.insert("title".into(), json!("Evenkeel configuration"));
    format!("{:#}\n", Json::Object(schema))
}

fn shape_schema(shape: &Shape) -> Map<String, Json> {
    let schema = match shape {
        Shape::Boolean => json!({ "type": "boolean" }),
        Shape::Integer { min, max: i64::MAX } => json!({ "type": "integer", "minimum": min }),
        Shape::Integer { min, max } => {
            json!({ "type": "integer", "minimum": min, "maximum": max })
        }
        Shape::Part => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        Shape::Text { pattern: None, .. } => json!({ "type": "string" }),
        Shape::Text {
            pattern: Some(pattern),
            ..
        } => {
            json!({ "type": "string", "pattern": pattern })
        }
        Shape::Choice(choices) => {
            let words: Vec<_> = choices.iter().map(|it| it.word).collect();
            json!({ "type": "string", "enum": words })
        }
        Shape::List(item) => json!({ "type": "array", "items": shape_schema(item) }),
        Shape::Map(item) => json!({ "type": "object", "additionalProperties": shape_schema(item) }),
        Shape::AnyOf(shapes) => {
            let schemas: Vec<_> = shapes.iter().map(shape_schema).collect();
            json!({ "anyOf": schemas })
        }
        Shape::Table(table) => table_schema(table),
        Shape::Secret(shape) => return shape_schema(shape),
        Shape::Recursive(again) => json!({ "$ref": again.pointer }),
    };
    match schema {
        Json::Object(schema) => schema,
        other => Map::from_iter([("const".to_owned(), other)]),
    }
}

fn table_schema(table: &TableShape) -> Json {
    let required = |key: &&KeyShape| matches!(key.presence, Presence::Required);
    let required: Vec<_> = table
        .keys
        .iter()
        .filter(required)
        .map(|it| it.key)
        .collect();
    let properties: Map<_, _> = table
        .keys
        .iter()
        .map(|it| (it.key.to_owned(), key_schema(it)))
        .collect();
    let mut schema = json!({
        "type": "object",
        "description": table.about,
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn key_schema(key: &KeyShape) -> Json {
    let mut schema = shape_schema(&key.shape);
    schema.insert("description".into(), json!(key.help));
    if let Presence::Default(text) = key.presence {
        let at = |_| SourcePlace {
            source: 0,
            range: 0..0,
        };
        if let Some(default) = tree::read_value(text, &at) {
            schema.insert("default".into(), json(&default));
        }
    }
    Json::Object(schema)
}

fn json(node: &Node) -> Json {
    match &node.value {
        Value::Text(text) | Value::Other(text) => json!(text),
        Value::Integer(integer) => json!(integer),
        Value::Boolean(boolean) => json!(boolean),
        Value::List(items) => items.iter().map(json).collect(),
        Value::Table(entries) => entries
            .iter()
            .map(|entry| (entry.key.clone(), json(&entry.node)))
            .collect(),
    }
}
