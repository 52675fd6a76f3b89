"""Configurations in full: that of LocalCowork, and one that says the same in our words."""

from __future__ import annotations

# The keys and the shape of LocalCowork's own file; the models and values are ours.
LOCALCOWORK = """\
active_model: lfm-big
models_dir: "${LOCALCOWORK_MODELS_DIR:-~/Projects/_models}"
enabled_servers: [filesystem, calendar]
enabled_tools:
  - filesystem.list_dir
  - calendar.list_events
models:
  lfm-big:
    display_name: "LFM big"
    runtime: llama_cpp
    model_path: "lfm-big-q4.gguf"
    base_url: "http://localhost:8080/v1"
    context_window: 32768
    tool_call_format: bracket
    temperature: 0.1
    tool_temperature: 0.1
    max_tokens: 4096
    estimated_vram_gb: 14.5
    force_json_response: false
    capabilities: [text, tool_calling]
  qwen-dev:
    display_name: "Qwen for development"
    runtime: ollama
    model_name: "qwen2.5:32b"
    base_url: "http://localhost:11434/v1"
    context_window: 32768
    tool_call_format: native_json
    temperature: 0.7
    max_tokens: 4096
    estimated_vram_gb: 20
    deprecated: true
    capabilities: [text, tool_calling]
  vision:
    display_name: "Vision"
    runtime: llama_cpp
    model_path: "/weights/vl.gguf"
    mmproj_path: "/weights/mmproj-vl.gguf"
    base_url: "http://localhost:8081/v1"
    context_window: 32768
    tool_call_format: native_json
    temperature: 0.1
    max_tokens: 1024
    estimated_vram_gb: 2
    capabilities: [text, vision]
  router:
    display_name: "Router"
    runtime: mlx
    model_path: "router-mlx"
    base_url: "http://localhost:8082/v1"
    context_window: 8192
    tool_call_format: bracket
    temperature: 0.0
    max_tokens: 256
    estimated_vram_gb: 1
    role: tool_router
    fine_tuned:
      base_model: small
      accuracy: 0.93
    capabilities: [text, tool_calling]
runtimes:
  ollama:
    command: "ollama serve"
    health_check: "http://localhost:11434/api/tags"
    startup_timeout_seconds: 30
  llama_cpp:
    command: "llama-server"
    args: ["--model", "{model_path}", "--port", "8080", "--ctx-size", "32768"]
    health_check: "http://localhost:8080/health"
    startup_timeout_seconds: 60
  mlx:
    command: "mlx_lm.server"
    args: ["--model", "{model_path}", "--port", "8080"]
    health_check: "http://localhost:8080/health"
    startup_timeout_seconds: 45
    platform: macos_only
fallback_chain: [lfm-big, qwen-dev, static_response]
orchestrator:
  enabled: false
  planner_model: lfm-big
  router_model: router
  router_top_k: 15
two_pass_tool_selection: true
"""

# The same, as ctxgate writes it.
OURS = """\
active_model: lfm-big
models_dir: ~/Projects/_models
models:
  lfm-big:
    display_name: LFM big
    runtime: llama.cpp
    path: lfm-big-q4.gguf
    base_url: http://localhost:8080
    context_window: 32768
    tool_call_format: pythonic
    temperature: 0.1
    max_tokens: 4096
    capabilities: [text, tool_calling]
  qwen-dev:
    display_name: Qwen for development
    runtime: ollama
    model_name: qwen2.5:32b
    base_url: http://localhost:11434
    context_window: 32768
    temperature: 0.7
    max_tokens: 4096
    capabilities: [text, tool_calling]
  vision:
    display_name: Vision
    runtime: llama.cpp
    path: /weights/vl.gguf
    mmproj_path: /weights/mmproj-vl.gguf
    base_url: http://localhost:8081
    context_window: 32768
    temperature: 0.1
    max_tokens: 1024
    capabilities: [text, vision]
  router:
    display_name: Router
    runtime: mlx
    path: router-mlx
    base_url: http://localhost:8082
    context_window: 8192
    tool_call_format: pythonic
    temperature: 0.0
    max_tokens: 256
    capabilities: [text, tool_calling]
runtimes:
  ollama:
    command: ollama serve
    health_check: http://localhost:11434/api/tags
    startup_timeout_seconds: 30
  llama.cpp:
    command: llama-server
    args: [--model, "{model_path}", --port, 8080, --ctx-size, 32768]
    health_check: http://localhost:8080/health
    startup_timeout_seconds: 60
  mlx:
    command: mlx_lm.server
    args: [--model, "{model_path}", --port, 8080]
    health_check: http://localhost:8080/health
    startup_timeout_seconds: 45
"""
