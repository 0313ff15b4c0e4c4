//! The files in `deploy/` agree with each other and with the program.

use std::path::Path;

use tokio::process::Command;

/// Checks what needs no container engine. The script prints what it skips.
#[tokio::test]
async fn the_deploy_files_agree_with_each_other_and_with_the_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let done = Command::new("python3")
        .arg(root.join("scripts/check_deploy.py"))
        .arg(env!("CARGO_BIN_EXE_elf"))
        .env_remove("RUST_LOG")
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    println!("{said}");
    assert!(
        done.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&done.stderr)
    );
}
