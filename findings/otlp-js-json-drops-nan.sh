#!/bin/bash
# OpenTelemetry's SDK for JavaScript: of a record whose body is NaN or an infinity, its JSON exporter sends
# {"doubleValue": null}, which in protobuf's JSON is a value that isn't set. Its protobuf exporter sends the number. OTLP's
# JSON is protobuf's, where these numbers are the strings "NaN", "Infinity" and "-Infinity". So the same application's
# records differ by exporter, and the value is lost without a word before it reaches any receiver.
# Expected: {"doubleValue": "NaN"}. Seen with @opentelemetry/exporter-logs-otlp-http and -proto 0.223.1 on Node.js 20.
# For users of nadi: choose http/protobuf as the protocol where numbers may be NaN; nadi's event then has "NaN".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm init -y > /dev/null
npm install --silent --no-audit --no-fund @opentelemetry/api@1.9.0 @opentelemetry/api-logs@0.223.1 \
  @opentelemetry/sdk-logs@0.223.1 @opentelemetry/exporter-logs-otlp-http@0.223.1 \
  @opentelemetry/exporter-logs-otlp-proto@0.223.1
cat > run.js <<'JS'
const http = require("http");
const { LoggerProvider, SimpleLogRecordProcessor } = require("@opentelemetry/sdk-logs");
const bodies = {};
const server = http.createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => { bodies[request.url] = Buffer.concat(parts); response.end(); });
});
server.listen(0, "127.0.0.1", async () => {
  for (const kind of ["http", "proto"]) {
    const { OTLPLogExporter } = require("@opentelemetry/exporter-logs-otlp-" + kind);
    const exporter = new OTLPLogExporter({ url: `http://127.0.0.1:${server.address().port}/${kind}` });
    const provider = new LoggerProvider({ processors: [new SimpleLogRecordProcessor({ exporter })] });
    provider.getLogger("a").emit({ body: NaN });
    await provider.forceFlush();
    await provider.shutdown();
  }
  server.close();
  const record = JSON.parse(bodies["/http"]).resourceLogs[0].scopeLogs[0].logRecords[0];
  const nan = Buffer.alloc(8);
  nan.writeDoubleLE(NaN);
  const inProtobuf = bodies["/proto"].includes(Buffer.concat([Buffer.from([0x21]), nan]));
  console.log("JSON exporter:", JSON.stringify(record.body), "- protobuf exporter sends the double NaN:", inProtobuf);
  process.exitCode = record.body.doubleValue === null && inProtobuf ? 0 : 1;
});
JS
node --version
node run.js
