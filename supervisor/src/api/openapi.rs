//! The OpenAPI 3.1 document, made from the routes and the Rust types of what they carry.

use axum::Json;
use schemars::SchemaGenerator;
use schemars::generate::{Contract, SchemaSettings};
use serde_json::{Map, Value, json};

use super::route::{Answer, Route, SchemaOf};
use super::routes;
use super::types::Problem;

/// Where the document keeps the shapes that it names.
const SCHEMAS: &str = "/components/schemas";

/// `GET /v1/openapi.json`
pub(super) async fn serve() -> Json<Value> {
    Json(document())
}

/// The whole document.
pub fn document() -> Value {
    let mut shapes = Shapes::new();
    let mut paths = Map::new();
    for route in routes::all() {
        let operation = shapes.operation(&route);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        if let Some(methods) = path.as_object_mut() {
            methods.insert(route.method.as_str().to_lowercase(), operation);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "atenea-sup control API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "HTTP/1.1 on a unix socket. Who may connect is decided by the socket's \
                permissions and the peer's credentials; there are no tokens. Money is dollars as text.",
            "license": { "name": "Apache-2.0 OR MIT" },
        },
        "paths": paths,
        "components": { "schemas": shapes.finish() },
    })
}

/// Shapes that were met. What comes in and what goes out are different contracts of a type: a field with
/// a default may be left out of a request and is always there in an answer.
struct Shapes {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Shapes {
    fn new() -> Self {
        let generator = |contract| {
            let mut settings = SchemaSettings::draft2020_12();
            settings.definitions_path = SCHEMAS.into();
            settings.meta_schema = None;
            settings.contract = contract;
            settings.into_generator()
        };
        Shapes {
            requests: generator(Contract::Deserialize),
            answers: generator(Contract::Serialize),
        }
    }

    fn finish(mut self) -> Map<String, Value> {
        let mut all = self.requests.take_definitions(true);
        all.extend(self.answers.take_definitions(true));
        all
    }

    fn operation(&mut self, route: &Route) -> Value {
        let mut parameters = path_parameters(route.path);
        parameters.extend(route.query.into_iter().flat_map(|query| self.query(query)));
        parameters.extend(route.headers.iter().map(|(name, meaning)| {
            let schema = json!({ "type": "string" });
            json!({ "name": name, "in": "header", "description": meaning, "schema": schema })
        }));
        let answer = |answer: &Answer| (answer.status.as_str().to_owned(), self.answer(answer));
        let mut responses: Map<String, Value> = route.answers.iter().map(answer).collect();
        responses.insert("default".to_owned(), self.problem());
        let mut operation = json!({ "summary": route.summary, "responses": responses });
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        if let Some(body) = route.body {
            let schema = body(&mut self.requests);
            let content = json!({ "application/json": { "schema": schema } });
            operation["requestBody"] = json!({ "required": true, "content": content });
        }
        operation
    }

    fn answer(&mut self, answer: &Answer) -> Value {
        let mut response = json!({ "description": answer.meaning });
        if let Some(content) = &answer.content {
            let media = match content.schema {
                Some(schema) => json!({ "schema": schema(&mut self.answers) }),
                None => json!({}),
            };
            response["content"] = json!({ content.media: media });
        }
        response
    }

    fn problem(&mut self) -> Value {
        let schema = self.answers.subschema_for::<Problem>();
        json!({
            "description": "It is refused. Codes are stable; docs/errors has a page for each.",
            "content": { "application/problem+json": { "schema": schema } },
        })
    }

    /// Each field of a query is a parameter.
    fn query(&mut self, query: SchemaOf) -> Vec<Value> {
        let schema = query(&mut self.requests).to_value();
        let required = |name: &str| {
            let names = schema["required"].as_array();
            names.is_some_and(|names| names.iter().any(|n| n == name))
        };
        let fields = schema["properties"].as_object();
        let one = |(name, field): (&String, &Value)| {
            let required = required(name);
            json!({ "name": name, "in": "query", "required": required, "schema": field })
        };
        fields.into_iter().flatten().map(one).collect()
    }
}

fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|p| p.strip_prefix('{')?.strip_suffix('}'));
    let one = |name| {
        let meaning = match name {
            "id" => "A run: its id, an unambiguous prefix of that, or a name.",
            _ => "Its name.",
        };
        let schema = json!({ "type": "string" });
        json!({ "name": name, "in": "path", "required": true, "description": meaning, "schema": schema })
    };
    names.map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_that_comes_in_and_goes_out_is_the_same_both_ways() {
        let mut shapes = Shapes::new();
        for route in routes::all() {
            shapes.operation(&route);
        }
        let mut requests = shapes.requests.take_definitions(true);
        let answers = shapes.answers.take_definitions(true);
        assert!(requests.contains_key("NewRun") && answers.contains_key("Receipt"));
        requests.retain(|name, shape| answers.get(name).is_some_and(|other| other != shape));
        assert!(requests.is_empty(), "one name, two shapes: {requests:?}");
    }
}
