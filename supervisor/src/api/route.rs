//! One operation of the API: who serves it and how it is described. The router and the OpenAPI document
//! are made from the same list, so that neither can have what the other lacks.

use axum::handler::Handler;
use axum::http::{Method, StatusCode};
use axum::routing::{MethodFilter, MethodRouter, on};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::App;

/// Makes the schema of a type, and of what it refers to in the generator.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// Content of an answer.
pub(super) struct Content {
    /// Media type.
    pub media: &'static str,
    /// Its shape, when that is JSON.
    pub schema: Option<SchemaOf>,
}

/// One answer that is no problem.
pub(super) struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// What it means.
    pub meaning: &'static str,
    /// Its body.
    pub content: Option<Content>,
}

/// One method of one path.
pub(super) struct Route {
    /// As the router takes it; parameters are in braces.
    pub path: &'static str,
    /// The method.
    pub method: Method,
    /// What it does, in one line.
    pub summary: &'static str,
    /// Who serves it.
    pub serve: MethodRouter<App>,
    /// Parameters of the query: an object.
    pub query: Option<SchemaOf>,
    /// The request's body.
    pub body: Option<SchemaOf>,
    /// Headers that mean something here, with what they mean.
    pub headers: Vec<(&'static str, &'static str)>,
    /// What it answers when it does not refuse.
    pub answers: Vec<Answer>,
}

impl Route {
    fn new(
        method: Method,
        path: &'static str,
        summary: &'static str,
        serve: MethodRouter<App>,
    ) -> Self {
        let (query, body, headers, answers) = (None, None, Vec::new(), Vec::new());
        Route { path, method, summary, serve, query, body, headers, answers }
    }

    /// A `GET`.
    pub(super) fn get<H, T>(path: &'static str, summary: &'static str, handler: H) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        Route::new(Method::GET, path, summary, on(MethodFilter::GET, handler))
    }

    /// A `POST`.
    pub(super) fn post<H, T>(path: &'static str, summary: &'static str, handler: H) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        Route::new(Method::POST, path, summary, on(MethodFilter::POST, handler))
    }

    /// A `PUT`.
    pub(super) fn put<H, T>(path: &'static str, summary: &'static str, handler: H) -> Self
    where
        H: Handler<T, App>,
        T: 'static,
    {
        Route::new(Method::PUT, path, summary, on(MethodFilter::PUT, handler))
    }

    /// With the fields of `Q` as parameters of the query.
    pub(super) fn query<Q: JsonSchema>(mut self) -> Self {
        self.query = Some(Q::json_schema);
        self
    }

    /// With a `B` as body.
    pub(super) fn takes<B: JsonSchema>(mut self) -> Self {
        self.body = Some(SchemaGenerator::subschema_for::<B>);
        self
    }

    /// With a header that means something.
    pub(super) fn header(mut self, name: &'static str, meaning: &'static str) -> Self {
        self.headers.push((name, meaning));
        self
    }

    /// Answers with an `A` as JSON.
    pub(super) fn gives<A: JsonSchema>(self, status: StatusCode, meaning: &'static str) -> Self {
        let schema: SchemaOf = SchemaGenerator::subschema_for::<A>;
        let content = Content { media: "application/json", schema: Some(schema) };
        self.answer(Answer { status, meaning, content: Some(content) })
    }

    /// Answers with something that is not one JSON value.
    pub(super) fn streams(self, media: &'static str, meaning: &'static str) -> Self {
        let content = Content { media, schema: None };
        self.answer(Answer { status: StatusCode::OK, meaning, content: Some(content) })
    }

    /// Answers without a body.
    pub(super) fn says(self, status: StatusCode, meaning: &'static str) -> Self {
        self.answer(Answer { status, meaning, content: None })
    }

    fn answer(mut self, answer: Answer) -> Self {
        self.answers.push(answer);
        self
    }
}
