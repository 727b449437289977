//! The MCP server: lists the tools, and runs their calls.

use rmcp::{
    ErrorData, ServerHandler, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation,
        ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
    },
    service::{RequestContext, RoleServer},
    transport::stdio,
};
use tokio::task::spawn_blocking;

use super::tools::{self, TOOLS};

const INSTRUCTIONS: &str = "Read-only tools: check API descriptions, source code and refrain.toml, explain Refrain's problem codes, \
    and read the records of a running proxy. No tool changes anything; a person has to resolve unknown outcomes.";

struct Server {
    admin: Option<String>,
}

/// Serves until the client closes the connection.
pub(super) async fn serve(admin: Option<String>) -> Result<(), String> {
    let service = Server { admin }.serve(stdio()).await;
    let service = service.map_err(|error| format!("cannot start the MCP session: {error}"))?;
    let ended = service.waiting().await;
    ended.map(drop).map_err(|error| error.to_string())
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("refrain", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = TOOLS.iter().map(tools::Tool::described).collect();
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = TOOLS.iter().find(|tool| tool.name == request.name) else {
            let message = format!("unknown tool `{}`", request.name);
            return Err(ErrorData::invalid_params(message, None));
        };
        let given = request.arguments.unwrap_or_default();
        let words = tool.command_line(&given, self.admin.as_deref());
        let words = words.map_err(|message| ErrorData::invalid_params(message, None))?;
        let answer = spawn_blocking(move || tool.run(&words)).await;
        let answer = answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        let result = match answer {
            Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]),
            Err(text) => CallToolResult::error(vec![ContentBlock::text(text)]),
        };
        Ok(result.into())
    }
}
